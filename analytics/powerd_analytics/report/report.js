// Tables that sort, the choice of light and dark, and the start of the traces.

/** Sort a table's rows by a column: up, down, and as they were. Cells without a value stay last. */
function sortBy(table, column) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  table.original ??= [...body.rows];
  const next = { none: "ascending", ascending: "descending", descending: "none" }[heads[column].getAttribute("aria-sort")];
  heads.forEach((head, i) => head.setAttribute("aria-sort", i === column ? next : "none"));
  const isNumeric = heads[column].classList.contains("n"), sign = next === "descending" ? -1 : 1;
  const key = ({ cells: { [column]: cell } }) => (isNumeric ? cell.dataset.value : cell.textContent.trim()) || null;
  body.append(...next === "none" ? table.original : [...table.original].sort((one, other) => {
    const a = key(one), b = key(other);
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (isNumeric ? a - b : a.localeCompare(b, "en", { numeric: true }));
  }));
}

/** The phases of a run by row of the picture. */
async function rowsOf({ names, details, colours, columns }) {
  const [begin, length, label, row] = await Promise.all(columns.map(unpack)), rows = [];
  for (let from = 0, to; from < row.length; from = to) {
    to = countBelow(row, row[from] + 1);
    rows.push({ begin: begin.subarray(from, to), length: length.subarray(from, to), label: label.subarray(from, to) });
  }
  return { names, details, colour: colours, rows };
}

/** What stands in a figure's own words about the piece of a bar under the pointer, or under a finger. */
function readOut(figure) {
  const out = figure.querySelector("output");
  for (const piece of figure.querySelectorAll("[data-text]")) {
    for (const name of ["pointerenter", "click"]) piece.addEventListener(name, () => { out.textContent = piece.dataset.text; });
  }
}

/** A name that does not fit its piece of a bar is left out: half a name is none. */
function hideCutNames(figure) {
  for (const name of figure.querySelectorAll("svg text.name")) {
    const room = name.closest("g").querySelector("rect").getBoundingClientRect().width;
    name.style.visibility = name.getComputedTextLength() + 6 > room ? "hidden" : "";
  }
}

/** A region that is wider than the window says so, as not every system shows a scroll bar. */
function tellOfScrolling(region) {
  const isWider = region.scrollWidth > region.clientWidth + 1;
  if (isWider) region.dataset.more = "↔ wider than this window: scroll it sideways"; else delete region.dataset.more;
}

async function start() {
  document.querySelectorAll("figure").forEach(readOut);
  const bars = new ResizeObserver(entries => entries.forEach(e => hideCutNames(e.target)));
  document.querySelectorAll("figure").forEach(figure => bars.observe(figure));
  const watcher = new ResizeObserver(entries => entries.forEach(e => tellOfScrolling(e.target)));
  document.querySelectorAll(".wide").forEach(region => watcher.observe(region));
  for (const table of document.querySelectorAll("table.sorts")) {
    table.querySelectorAll("th button").forEach((button, i) => button.addEventListener("click", () => sortBy(table, i)));
  }
  const traces = [], root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  const redraw = () => traces.forEach(trace => trace.draw());
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark" ? "light" : "dark";
    redraw();
  });
  dark.addEventListener("change", redraw);
  // Paper is white: curves and text in light colours would not be seen on it. Nor would closed notes.
  let chosen;
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach(notes => { notes.open = true; });
    chosen = root.dataset.theme;
    root.dataset.theme = "light";
    redraw();
  });
  addEventListener("afterprint", () => {
    root.dataset.theme = chosen ?? "";
    redraw();
  });
  // The page of a campaign has none.
  for (const run of JSON.parse(document.getElementById("traces")?.textContent ?? "[]")) {
    const phases = run.phases ? await rowsOf(run.phases) : null;
    for (const spec of run.traces) {
      const trace = new Trace(document.getElementById(spec.box), spec, phases);
      await trace.load();
      traces.push(trace);
      await new Promise(done => setTimeout(done));
    }
  }
  window.joulesReport = { traces };
  root.dataset.ready = "yes";
}

start().catch(error => {
  document.documentElement.dataset.ready = "failed";
  for (const p of document.querySelectorAll(".waiting")) p.textContent = `This browser cannot show the traces: ${error.message}`;
  console.error(error);
});
