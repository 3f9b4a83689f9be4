"use strict";
// A zoomable trace: curves of power above, phases as bands below, stretches without readings shaded.

const ROW = 15, AXIS = 22, LEFT = 56, PLOT = 230, BLOCK = 64;

/** A column of whole numbers out of its text, as traces.py packs it: byte planes of folded differences. */
async function unpack({ id, n, planes }) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const values = new Float64Array(n);
  for (let i = 0, sum = 0; i < n; i++) {
    let folded = 0;
    for (let k = planes - 1; k >= 0; k--) folded = folded * 256 + bytes[k * n + i];
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

const significant = x => String(Number(x.toPrecision(4)));

/** Microseconds as a duration for people. */
function duration(us) {
  const [unit, size] = us >= 1e6 ? ["s", 1e6] : us >= 1e3 ? ["ms", 1e3] : ["µs", 1];
  return `${significant(us / size)} ${unit}`;
}

/** Round numbers between two values, with their texts. */
function ticks(low, high, many) {
  const rough = (high - low) / many, size = 10 ** Math.floor(Math.log10(rough)), marks = [];
  const step = size * [1, 2, 5, 10].find(m => m * size >= rough * (1 - 1e-9));
  const decimals = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step) - 1e-9)));
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high; i++) marks.push([i * step, (i * step).toFixed(decimals)]);
  return marks;
}

/** Least and greatest of every BLOCK points, with the time of the first: for views of more points than pixels. */
function coarse({ time, low, high, gap_us }) {
  const n = Math.ceil(time.length / BLOCK), span = n ? (time[time.length - 1] - time[0]) / n : 0;
  const level = { time: time.filter((_, i) => i % BLOCK === 0), low: new Float32Array(n).fill(Infinity), high: new Float32Array(n).fill(-Infinity), gap_us: gap_us + span };
  for (let i = 0; i < time.length; i++) {
    const k = Math.floor(i / BLOCK);
    if (low[i] < level.low[k]) level.low[k] = low[i];
    if (high[i] > level.high[k]) level.high[k] = high[i];
  }
  return level;
}

class Trace {
  constructor(box, spec, phases) {
    const canvas = box.querySelector("canvas"), out = box.querySelector("output"), context = canvas.getContext("2d");
    Object.assign(this, { box, spec, phases, canvas, out, context, begin: 0, end: Math.max(spec.length_us, 1), cursor: null, brush: null, lines: [] });
  }

  async load() {
    for (const spec of this.spec.lines) {
      const [time, ...watts] = await Promise.all([spec.time, ...spec.watts.columns].map(unpack));
      const [low, high = low, mean = low] = watts.map(steps => Float32Array.from(steps, q => spec.watts.low + spec.watts.step * q));
      const points = { time, low, high, mean, gap_us: spec.gap_us };
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
    if (!this.phases) return;
    const row = this.phases.rows.reduce((a, b) => (b.begin.length > a.begin.length ? b : a));
    const middle = (this.begin + this.end) / 2, beyond = i => direction * (row.begin[i] + row.length[i] / 2 - middle) > 1;
    let i = Math.max(countBelow(row.begin, middle) - 1, 0);
    while (i + direction in row.begin && !beyond(i)) i += direction;
    const begin = row.begin[i], length = Math.max(row.length[i], 10);
    this.setView(begin - length / 4, begin + 1.25 * length);
    this.cursor = begin + length / 2;
  }

  /** Mark a stretch, whose joules are then read out; without one, all that is in view. */
  mark(begin = this.begin, end = this.end) {
    this.brush = [Math.max(Math.min(begin, end), 0), Math.min(Math.max(begin, end), this.spec.length_us)];
    this.words = null;
    this.later();
  }

  later() {
    cancelAnimationFrame(this.waiting);
    this.waiting = requestAnimationFrame(() => this.draw());
  }

  listen() {
    const canvas = this.canvas, at = e => this.begin + (e.clientX - canvas.getBoundingClientRect().left - LEFT) / this.scale;
    const on = (name, action) => canvas.addEventListener(name, action, { passive: false });
    let dragged = null;
    on("wheel", e => {
      if (document.activeElement !== canvas && !e.ctrlKey) return;
      e.preventDefault();
      this.zoom(Math.exp(Math.max(-1, Math.min(1, e.deltaY / 300))), at(e));
    });
    on("pointerdown", e => {
      canvas.focus(); canvas.setPointerCapture(e.pointerId);
      dragged = { x: e.clientX, at: at(e), begin: this.begin, end: this.end, moves: e.shiftKey };
      if (!dragged.moves) this.brush = null;
    });
    on("pointermove", e => {
      const x = dragged ? e.clientX - dragged.x : 0;
      if (dragged?.moves) this.setView(dragged.begin - x / this.scale, dragged.end - x / this.scale);
      else if (Math.abs(x) > 2) this.mark(dragged.at, at(e));
      this.cursor = at(e);
      this.later();
    });
    for (const name of ["pointerup", "pointercancel"]) on(name, () => { dragged = null; });
    on("pointerleave", () => { this.cursor = null; this.later(); });
    on("dblclick", () => this.home());
    const actions = { in: () => this.zoom(0.5), out: () => this.zoom(2), all: () => this.home(), left: () => this.pan(-0.2),
      right: () => this.pan(0.2), next: () => this.step(1), previous: () => this.step(-1), mark: () => this.mark() };
    const keys = { ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", "-": "out", Home: "all", n: "next", p: "previous", j: "mark" };
    on("keydown", e => {
      if (!keys[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
      e.preventDefault();
      actions[keys[e.key]]();
      this.cursor = (this.begin + this.end) / 2;
    });
    for (const b of this.box.querySelectorAll("button")) b.addEventListener("click", actions[b.dataset.do]);
    this.box.querySelectorAll("input").forEach((input, i) => input.addEventListener("change", () => {
      this.lines[i].shown = input.checked;
      this.words = null;
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
    const stroke = (x1, y1, x2, y2) => { c.beginPath(); c.moveTo(x1, y1); c.lineTo(x2, y2); c.stroke(); };
    c.font = "11px system-ui, sans-serif";
    c.fillStyle = colour("ink"); c.strokeStyle = colour("faint"); c.textAlign = "right"; c.textBaseline = "middle";
    for (const [w, text] of ticks(low, high, 5)) {
      c.fillText(text + " W", LEFT - 5, y(w));
      stroke(LEFT, Math.round(y(w)) + 0.5, LEFT + this.width, Math.round(y(w)) + 0.5);
    }
    c.textAlign = "center"; c.textBaseline = "alphabetic";
    const span = this.end - this.begin, small = span < 3e3 ? ["µs", 1] : span < 3e6 ? ["ms", 1e3] : ["s", 1e6];
    // Far into a run, seconds with decimals are shorter than that many small ones.
    const [unit, us] = this.end < 1e5 * small[1] ? small : ["s", 1e6];
    for (const [t, text] of ticks(this.begin / us, this.end / us, Math.max(3, Math.floor(this.width / 110)))) {
      c.fillText(text + " " + unit, x(t * us), height - 6);
      stroke(x(t * us), height - AXIS, x(t * us), height - AXIS + 4);
    }
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
    if (this.phases) this.phases.rows.forEach((row, r) => this.band(c, row, PLOT + 4 + r * ROW));
    if (this.brush) {
      const [left, right] = this.brush.map(x);
      c.fillStyle = colour("accent"); c.globalAlpha = 0.16;
      c.fillRect(left, 0, Math.max(right - left, 1), height - AXIS);
    }
    c.strokeStyle = colour("ink"); c.globalAlpha = 0.6; c.lineWidth = 1;
    if (this.cursor !== null) stroke(x(this.cursor), 0, x(this.cursor), height - AXIS);
    c.restore();
    const said = this.said();
    if (this.out.textContent !== said) this.out.textContent = said;
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
    return { spec: line.spec, points, least, most, hasDots: many < this.width / 5 };
  }

  curve(c, { spec, points, hasDots }, y, colour) {
    const isSum = spec.role === "sum", isCompared = spec.role === "compared";
    c.strokeStyle = c.fillStyle = colour(isSum ? "ink" : "line" + (this.spec.lines.indexOf(spec) % 8));
    c.lineWidth = isSum ? 1.4 : 1;
    c.setLineDash(isCompared ? [5, 3] : []);
    c.globalAlpha = isCompared ? 0.75 : 1;
    c.beginPath();
    for (const p of points) {
      if (p.isJoined) c.lineTo(LEFT + p.x, y(p.high)); else c.moveTo(LEFT + p.x, y(p.high));
      if (p.low < p.high) c.lineTo(LEFT + p.x, y(p.low));
      if (hasDots || !p.isJoined) c.fillRect(LEFT + p.x - 1, y(p.high) - 1, 2, 2);
    }
    c.stroke();
  }

  /** Phases of a row. Where several share a pixel their colours would be chance: one colour for all, and their number. */
  band(c, row, top) {
    const first = Math.max(countBelow(row.begin, this.begin) - 1, 0), last = countBelow(row.begin, this.end);
    c.textBaseline = "middle"; c.textAlign = "left";
    if (last - first > this.width) {
      c.fillStyle = "#a0a09c";
      for (let x = 0; x < this.width; x++) {
        const t = this.begin + (x + 0.5) / this.scale, i = countBelow(row.begin, t) - 1;
        if (i >= 0 && row.begin[i] + row.length[i] >= t) c.fillRect(LEFT + x, top, 1, ROW - 2);
      }
      c.fillStyle = "#000";
      c.fillText(`${last - first} phases: zoom in to see them`, LEFT + 6, top + ROW / 2 - 0.5);
      return;
    }
    const fills = this.phases.colour;
    for (let i = first; i < last; i++) {
      const x = LEFT + (row.begin[i] - this.begin) * this.scale, w = row.length[i] * this.scale;
      c.fillStyle = fills[row.label[i]];
      c.fillRect(x, top, Math.max(w - (w > 3 ? 0.7 : 0), 0.5), ROW - 2);
      const left = Math.max(x, LEFT), room = Math.min(x + w, LEFT + this.width) - left - 6;
      if (w < 34 || room < 14) continue;
      let text = this.phases.names[row.label[i]];
      while (text.length > 1 && c.measureText(text).width > room) text = text.slice(0, -2) + "…";
      c.fillStyle = "#000"; c.fillText(text, left + 3, top + ROW / 2 - 0.5);
    }
  }

  /** Joules of a line between two moments: the integral of what is drawn, and the most by which that can be off: where
   * the stretch begins and ends between two readings, by rounding, and where readings are missing in it. */
  joules(line, begin, end) {
    const { time, low, high, mean, spec } = line, n = time.length, isBlock = spec.block > 1;
    let sum = 0, bound = 0, missing = 0;
    const least = line.coarse.low.reduce((a, b) => Math.min(a, b), Infinity), most = line.coarse.high.reduce((a, b) => Math.max(a, b), -Infinity);
    for (let i = Math.max(countBelow(time, begin) - 1, 0); i < n - 1 && time[i] < end; i++) {
      const from = Math.max(time[i], begin), to = Math.min(time[i + 1], end), whole = time[i + 1] - time[i], part = to - from;
      if (part <= 0) continue;
      // A block's mean is of all its readings; between two readings power is taken to be straight.
      const slope = isBlock ? 0 : (mean[i + 1] - mean[i]) / whole, watts = mean[i] + slope * ((from + to) / 2 - time[i]);
      const span = isBlock ? high[i] - low[i] : Math.abs(mean[i + 1] - mean[i]);
      sum += watts * part;
      if (whole > spec.gap_us) { missing += part; bound += (most - least) * part; } else if (part < whole) bound += span * part;
    }
    const covered = Math.max(Math.min(end, time[n - 1]) - Math.max(begin, time[0]), 0);
    return { sum: sum / 1e6, bound: (bound + spec.watts.step / 2 * covered) / 1e6, missing: missing + (end - begin) - covered };
  }

  /** The joules of the marked stretch, line by line. */
  marked() {
    const [begin, end] = this.brush, texts = [];
    const shown = this.lines.filter(l => l.shown && l.time.length > 1), hasSum = shown.some(l => l.spec.role === "sum");
    for (const line of shown.filter(l => !hasSum || l.spec.role !== "feed")) {
      const { sum, bound, missing } = this.joules(line, begin, end), watts = sum / (end - begin) * 1e6;
      const gap = missing > 0.001 * (end - begin) ? `, ${duration(missing)} of it without readings` : "";
      texts.push(`${line.spec.name}: ${significant(sum)} ± ${Number(bound.toPrecision(2))} J (${significant(watts)} W)${gap}`);
    }
    const sensor = this.spec.u95_percent === null ? "" : ` · the sensor's own ± ${this.spec.u95_percent} % come on top`;
    return `marked ${duration(end - begin)} from ${(begin / 1e6).toFixed(6)} s on · ${texts.join(" · ")}${sensor}`;
  }

  /** Joules of what is marked; else time, power and phases at the cursor, or without one what is in view. */
  said() {
    const t = this.cursor, begin = Math.max(this.begin, 0), texts = [], inside = [];
    if (this.brush) return this.words ??= this.marked();
    if (t === null) return `${duration(this.end - begin)} from ${(begin / 1e6).toFixed(6)} s on`;
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
    return [`at ${(t / 1e6).toFixed(6)} s`, ...texts, inside.join(" › ")].filter(Boolean).join(" · ");
  }
}
