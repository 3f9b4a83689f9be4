"use strict";
// A zoomable trace: curves of power above, phases as bands below, stretches without readings shaded.

const ROW = 15, AXIS = 22, LEFT = 56, PLOT = 230;

/** A column of whole numbers out of its text, as traces.py packs it: byte planes of folded differences. */
async function unpack(column) {
  const packed = Uint8Array.from(atob(document.getElementById(column.id).textContent), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const values = new Float64Array(column.n);
  for (let i = 0, sum = 0; i < column.n; i++) {
    let folded = 0;
    for (let k = column.planes - 1; k >= 0; k--) folded = folded * 256 + bytes[k * column.n + i];
    values[i] = sum += folded % 2 ? -(folded + 1) / 2 : folded / 2;
  }
  return values;
}

/** How many of the sorted values lie below x. */
function countBelow(values, x) {
  let from = 0, to = values.length;
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] < x) from = middle + 1; else to = middle;
  }
  return from;
}

function significant(x, digits = 4) {
  const size = Math.abs(x);
  if (size > 0 && (size < 1e-6 || size >= 1e9)) return x.toExponential(digits - 1);
  return x === 0 ? "0" : x.toFixed(Math.max(0, Math.min(9, digits - 1 - Math.floor(Math.log10(size)))));
}

/** Microseconds as a duration for people. */
function duration(us) {
  if (us >= 1e6 || us === 0) return significant(us / 1e6) + " s";
  return us >= 1e3 ? significant(us / 1e3) + " ms" : significant(us, 3) + " µs";
}

function ticks(low, high, many) {
  const rough = (high - low) / many, size = 10 ** Math.floor(Math.log10(rough)), found = [];
  const step = [1, 2, 5, 10].map(m => m * size).find(s => s >= rough) || 10 * size;
  const decimals = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step) - 1e-9)));
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-12); i++) found.push([i * step, (i * step).toFixed(decimals)]);
  return found;
}

const BLOCK = 64;

/** Least and greatest of every BLOCK points, with the time of the first: for views of more points than pixels. */
function coarse({ time, low, high, gap_us }) {
  const n = Math.ceil(time.length / BLOCK), span = n ? (time[time.length - 1] - time[0]) / n : 0;
  const level = { time: new Float64Array(n), low: new Float32Array(n).fill(Infinity), high: new Float32Array(n).fill(-Infinity), gap_us: gap_us + span };
  for (let i = 0; i < time.length; i++) {
    const k = Math.floor(i / BLOCK);
    if (i % BLOCK === 0) level.time[k] = time[i];
    if (low[i] < level.low[k]) level.low[k] = low[i];
    if (high[i] > level.high[k]) level.high[k] = high[i];
  }
  return level;
}

class Trace {
  constructor(box, spec, phases) {
    Object.assign(this, { box, spec, phases, begin: 0, end: Math.max(spec.length_us, 1), cursor: null, waiting: false, lines: [] });
    this.canvas = box.querySelector("canvas");
    this.out = box.querySelector("output");
    this.context = this.canvas.getContext("2d");
  }

  async load() {
    for (const spec of this.spec.lines) {
      const watts = [];
      for (const column of spec.watts.columns) watts.push(Float32Array.from(await unpack(column), q => spec.watts.low + spec.watts.step * q));
      const points = { time: await unpack(spec.time), low: watts[0], high: watts[watts.length - 1], gap_us: spec.gap_us };
      this.lines.push({ spec, ...points, coarse: coarse(points), shown: true });
    }
    this.canvas.style.height = PLOT + AXIS + (this.phases ? this.phases.rows.length : 0) * ROW + 6 + "px";
    this.listen();
    this.draw();
    this.box.querySelector(".waiting").remove();
  }

  setView(begin, end) {
    const whole = Math.max(this.spec.length_us, 1), length = Math.min(Math.max(end - begin, 20), whole * 1.1);
    this.begin = Math.max(-0.05 * whole, Math.min(begin, 1.05 * whole - length));
    this.end = this.begin + length;
    this.later();
  }

  zoom(factor, at = (this.begin + this.end) / 2) { this.setView(at - (at - this.begin) * factor, at + (this.end - at) * factor); }

  pan(share) { const d = (this.end - this.begin) * share; this.setView(this.begin + d, this.end + d); }

  home() { this.setView(0, this.spec.length_us); }

  /** Show the next (1) or the previous (-1) of the innermost phases, with a little around it. */
  step(direction) {
    if (!this.phases || !this.phases.rows.length) return;
    const row = this.phases.rows.reduce((a, b) => (b.begin.length > a.begin.length ? b : a));
    const middle = (this.begin + this.end) / 2, centre = i => row.begin[i] + row.length[i] / 2;
    let i = Math.max(countBelow(row.begin, middle) - 1, 0);
    while (i + direction >= 0 && i + direction < row.begin.length && direction * (centre(i) - middle) <= 1) i += direction;
    const begin = row.begin[i], length = Math.max(row.length[i], 10);
    this.setView(begin - length / 4, begin + 1.25 * length);
    this.cursor = begin + length / 2;
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  listen() {
    const canvas = this.canvas, at = e => this.begin + (e.clientX - canvas.getBoundingClientRect().left - LEFT) / this.scale;
    let dragged = null;
    canvas.addEventListener("wheel", e => {
      if (document.activeElement !== canvas && !e.ctrlKey) return;
      e.preventDefault();
      if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) this.pan(e.deltaX / 800);
      else this.zoom(Math.exp(Math.max(-1, Math.min(1, e.deltaY / 300))), at(e));
    }, { passive: false });
    canvas.addEventListener("pointerdown", e => {
      canvas.focus(); canvas.setPointerCapture(e.pointerId);
      dragged = { x: e.clientX, begin: this.begin, end: this.end };
    });
    canvas.addEventListener("pointermove", e => {
      this.cursor = at(e);
      if (!dragged) { this.later(); return; }
      const d = (e.clientX - dragged.x) / this.scale;
      this.setView(dragged.begin - d, dragged.end - d);
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { dragged = null; });
    canvas.addEventListener("pointerleave", () => { if (!dragged) { this.cursor = null; this.later(); } });
    canvas.addEventListener("dblclick", () => this.home());
    const keys = { ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", "-": "out", Home: "all", n: "next", p: "previous" };
    const actions = { in: () => this.zoom(0.5), out: () => this.zoom(2), all: () => this.home(), left: () => this.pan(-0.2),
      right: () => this.pan(0.2), next: () => this.step(1), previous: () => this.step(-1) };
    canvas.addEventListener("keydown", e => {
      if (!keys[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
      e.preventDefault();
      actions[keys[e.key]]();
      if (e.key !== "n" && e.key !== "p") this.cursor = (this.begin + this.end) / 2;
    });
    for (const b of this.box.querySelectorAll("button[data-do]")) b.addEventListener("click", actions[b.dataset.do]);
    this.box.querySelectorAll("input[data-line]").forEach(input => input.addEventListener("change", () => {
      this.lines[Number(input.dataset.line)].shown = input.checked;
      this.later();
    }));
    new ResizeObserver(() => this.later()).observe(canvas);
  }

  draw() {
    const canvas = this.canvas, c = this.context, ratio = window.devicePixelRatio || 1;
    const full = canvas.clientWidth, height = canvas.clientHeight;
    if (!full) return;
    canvas.width = Math.round(full * ratio); canvas.height = Math.round(height * ratio);
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.width = full - LEFT - 8;
    this.scale = this.width / (this.end - this.begin);
    const style = getComputedStyle(document.documentElement), colour = name => style.getPropertyValue("--" + name).trim();
    const x = t => LEFT + (t - this.begin) * this.scale;
    const shapes = this.lines.filter(line => line.shown).map(line => this.columns(line));
    const low = Math.min(0, ...shapes.map(s => s.least)), top = Math.max(0, ...shapes.map(s => s.most));
    const high = top > low ? top + 0.06 * (top - low) : low + 1, y = watts => PLOT - (watts - low) / (high - low) * (PLOT - 10);
    c.font = "11px system-ui, sans-serif";
    this.axes(c, low, high, x, y, colour("ink"), colour("faint"), height);
    c.save();
    c.beginPath(); c.rect(LEFT, 0, this.width, height); c.clip();
    c.fillStyle = "#888";
    let shaded = -Infinity;  // gaps that share a column of pixels shade it once, and hide no curve
    for (const [begin, end] of this.spec.gaps) {
      const left = Math.max(x(begin), shaded);
      shaded = Math.max(x(begin) + Math.max(x(end) - x(begin), 1), shaded);
      // Of less than a pixel, lighter: many short ones would pass for a run without readings.
      c.globalAlpha = x(end) - x(begin) < 1 ? 0.12 : 0.3;
      if (shaded > left) c.fillRect(left, 0, shaded - left, PLOT);
    }
    for (const shape of shapes) this.curve(c, shape, y, colour);
    c.setLineDash([]); c.globalAlpha = 1;
    if (this.phases) this.phases.rows.forEach((row, r) => this.band(c, row, PLOT + 4 + r * ROW, colour));
    if (this.cursor !== null) {
      c.strokeStyle = colour("ink"); c.globalAlpha = 0.6; c.lineWidth = 1;
      c.beginPath(); c.moveTo(x(this.cursor), 0); c.lineTo(x(this.cursor), height - AXIS); c.stroke();
    }
    c.restore();
    this.say();
  }

  /** What of a line is in view: points where they are few, else least and greatest of each column of pixels. */
  columns(line) {
    const many = countBelow(line.time, this.end) - countBelow(line.time, this.begin), isFew = many <= 2 * this.width;
    const { time, low, high, gap_us } = many > 2 * BLOCK * this.width ? line.coarse : line, points = [];
    const from = Math.max(countBelow(time, this.begin) - 1, 0), to = Math.min(countBelow(time, this.end) + 1, time.length);
    let least = Infinity, most = -Infinity, last = null;
    for (let i = from; i < to; i++) {
      const x = (time[i] - this.begin) * this.scale, column = Math.floor(x);
      if (low[i] < least) least = low[i];
      if (high[i] > most) most = high[i];
      const isJoined = i > from && time[i] - time[i - 1] <= gap_us;
      if (!isFew && last && last.column === column && isJoined) {
        if (low[i] < last.low) last.low = low[i];
        if (high[i] > last.high) last.high = high[i];
      } else points.push(last = { x, column, low: low[i], high: high[i], isJoined });
    }
    return { line, points, least, most, hasDots: many < this.width / 5 };
  }

  curve(c, { line, points, hasDots }, y, colour) {
    const { role } = line.spec;
    c.strokeStyle = c.fillStyle = colour(role === "sum" ? "ink" : "line" + (this.spec.lines.indexOf(line.spec) % 8));
    c.lineWidth = role === "sum" ? 1.4 : 1;
    c.setLineDash(role === "compared" ? [5, 3] : []);
    c.globalAlpha = role === "compared" ? 0.75 : 1;
    c.beginPath();
    for (const p of points) {
      if (p.isJoined) c.lineTo(LEFT + p.x, y(p.high)); else c.moveTo(LEFT + p.x, y(p.high));
      if (p.low < p.high) c.lineTo(LEFT + p.x, y(p.low));
      if (hasDots || !p.isJoined) c.fillRect(LEFT + p.x - 1, y(p.high) - 1, 2, 2);
    }
    c.stroke();
  }

  axes(c, low, high, x, y, ink, faint, height) {
    c.fillStyle = ink; c.strokeStyle = faint; c.lineWidth = 1;
    c.textAlign = "right"; c.textBaseline = "middle";
    for (const [w, text] of ticks(low, high, 5)) {
      c.fillText(text + " W", LEFT - 5, y(w));
      c.beginPath(); c.moveTo(LEFT, Math.round(y(w)) + 0.5); c.lineTo(LEFT + this.width, Math.round(y(w)) + 0.5); c.stroke();
    }
    c.textAlign = "center"; c.textBaseline = "alphabetic";
    const span = this.end - this.begin, small = span < 3e3 ? ["µs", 1] : span < 3e6 ? ["ms", 1e3] : ["s", 1e6];
    // Far into a run, seconds with decimals are shorter than that many small ones.
    const [unit, us] = this.end < 1e5 * small[1] ? small : ["s", 1e6];
    for (const [t, text] of ticks(this.begin / us, this.end / us, Math.max(3, Math.floor(this.width / 110)))) {
      c.fillText(text + " " + unit, x(t * us), height - 6);
      c.beginPath(); c.moveTo(x(t * us), height - AXIS); c.lineTo(x(t * us), height - AXIS + 4); c.stroke();
    }
  }

  /** Phases of a row. Where several share a pixel their colours would be chance: one colour for all, and their number. */
  band(c, row, top, colour) {
    const first = Math.max(countBelow(row.begin, this.begin) - 1, 0), last = countBelow(row.begin, this.end);
    c.textBaseline = "middle"; c.textAlign = "left";
    if (last - first > this.width) {
      c.fillStyle = colour("phase6");
      for (let x = 0; x < this.width; x++) {
        const t = this.begin + (x + 0.5) / this.scale, i = countBelow(row.begin, t) - 1;
        if (i >= 0 && row.begin[i] + row.length[i] >= t) c.fillRect(LEFT + x, top, 1, ROW - 2);
      }
      c.fillStyle = "#000";
      c.fillText(`${last - first} phases: zoom in to see them`, LEFT + Math.max(row.begin[first] - this.begin, 0) * this.scale + 6, top + ROW / 2 - 0.5);
      return;
    }
    for (let i = first; i < last; i++) {
      const x = LEFT + (row.begin[i] - this.begin) * this.scale, w = row.length[i] * this.scale;
      c.fillStyle = colour("phase" + this.phases.colour[row.label[i]]);
      c.fillRect(x, top, Math.max(w - (w > 3 ? 0.7 : 0), 0.5), ROW - 2);
      const left = Math.max(x, LEFT), room = Math.min(x + w, LEFT + this.width) - left - 6;
      if (w < 34 || room < 14) continue;
      let text = this.phases.names[row.label[i]];
      while (text.length > 1 && c.measureText(text).width > room) text = text.slice(0, -2) + "…";
      c.fillStyle = "#000"; c.fillText(text, left + 3, top + ROW / 2 - 0.5);
    }
  }

  /** Time, power and phases at the cursor; without one, what is in view. */
  say() {
    const t = this.cursor, texts = [], inside = [];
    if (t === null) { this.put(`${duration(this.end - Math.max(this.begin, 0))} from ${(Math.max(this.begin, 0) / 1e6).toFixed(6)} s on`); return; }
    for (const line of this.lines.filter(l => l.shown && l.time.length)) {
      let i = countBelow(line.time, t);
      if (line.spec.block > 1) i = Math.max(i - 1, 0);
      else if (i > 0 && (i === line.time.length || t - line.time[i - 1] < line.time[i] - t)) i -= 1;
      const low = significant(line.low[i]), high = significant(line.high[i]);
      const isFar = Math.abs(line.time[i] - t) > line.spec.gap_us;
      texts.push(`${line.spec.name}: ${isFar ? "no reading" : (low === high ? low : low + " to " + high) + " W"}`);
    }
    for (const row of this.phases ? this.phases.rows : []) {
      const i = countBelow(row.begin, t) - 1;
      if (i < 0 || row.begin[i] + row.length[i] < t) continue;
      const detail = this.phases.details[row.label[i]];
      inside.push(this.phases.names[row.label[i]] + (inside.length || !detail ? "" : ` (${detail})`) + ` ${duration(row.length[i])}`);
    }
    this.put([`at ${(t / 1e6).toFixed(6)} s`, ...texts, inside.join(" › ")].filter(Boolean).join(" · "));
  }

  put(text) { if (this.out.textContent !== text) this.out.textContent = text; }
}
