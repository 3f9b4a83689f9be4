// Tables that sort, the choice of light and dark, and the start of the traces.

/** Sort a table's rows by a column: up, down, and as they were. Cells without a value stay last. */
function sortBy(table, column) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  if (!table.original) table.original = [...body.rows];
  const next = { none: "ascending", ascending: "descending", descending: "none" }[heads[column].getAttribute("aria-sort")];
  heads.forEach((head, i) => head.setAttribute("aria-sort", i === column ? next : "none"));
  const numeric = heads[column].classList.contains("n");
  const key = row => {
    const cell = row.cells[column];
    if (numeric) return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
    return cell.textContent.trim() || null;
  };
  const sign = next === "descending" ? -1 : 1;
  const rows = next === "none" ? table.original : table.original.map(row => [key(row), row]).sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (numeric ? a - b : a.localeCompare(b, "en", { numeric: true }));
  }).map(([, row]) => row);
  body.append(...rows);
}

async function rowsOf(spec) {
  const [begin, length, label, row] = await Promise.all(spec.columns.map(unpack));
  const rows = [];
  for (let i = 0, from = 0; i <= row.length; i++) {
    if (i < row.length && row[i] === row[from]) continue;
    if (i > from) rows.push({ begin: begin.subarray(from, i), length: length.subarray(from, i), label: label.subarray(from, i) });
    from = i;
  }
  return { names: spec.names, details: spec.details, colour: spec.colours, rows };
}

async function start() {
  for (const table of document.querySelectorAll("table.sorts")) {
    [...table.tHead.rows[0].cells].forEach((head, i) => {
      const button = head.querySelector("button");
      if (button) button.addEventListener("click", () => sortBy(table, i));
    });
  }
  const traces = [];
  const redraw = () => traces.forEach(trace => trace.later());
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = root.dataset.theme || (dark ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // Paper is white: curves and text in light colours would not be seen on it.
  // Nor would closed notes.
  let chosen, closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach(notes => { notes.open = true; });
    chosen = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    traces.forEach(trace => trace.draw());
  });
  addEventListener("afterprint", () => {
    closed.forEach(notes => { notes.open = false; });
    if (chosen) document.documentElement.dataset.theme = chosen; else delete document.documentElement.dataset.theme;
    redraw();
  });
  for (const run of JSON.parse(document.getElementById("traces").textContent)) {
    const phases = run.phases ? await rowsOf(run.phases) : null;
    for (const spec of run.traces) {
      const trace = new Trace(document.getElementById(spec.box), spec, phases);
      await trace.load();
      traces.push(trace);
      await new Promise(done => setTimeout(done));
    }
  }
  window.joulesReport = { traces };
  document.documentElement.dataset.ready = "yes";
}

start().catch(error => {
  document.documentElement.dataset.ready = "failed";
  for (const p of document.querySelectorAll(".waiting")) p.textContent = `This browser cannot show the traces: ${error.message}`;
  console.error(error);
});
