// A zoomable trace: curves of power above, phases as bands below, stretches without readings shaded.

const ROW = 15, AXIS = 22, LEFT = 56, PLOT = 230;

class Trace {
  constructor(box, spec, phases) {
    this.box = box; this.spec = spec; this.phases = phases;
    this.canvas = box.querySelector("canvas");
    this.out = box.querySelector("output");
    this.context = this.canvas.getContext("2d");
    this.begin = 0; this.end = Math.max(spec.length_us, 1);
    this.cursor = null; this.waiting = false;
    this.lines = []; this.starts = []; this.frames = [];
  }

  async load() {
    for (const spec of this.spec.lines) {
      const time = await unpack(spec.time), columns = await unpackWatts(spec.watts);
      const low = columns[0], high = columns[columns.length - 1];
      this.lines.push({ spec, time, low, high, levels: pyramid(low, high, time), shown: true });
    }
    const many = 1 + (this.phases ? this.phases.rows.length : 0);
    this.canvas.style.height = PLOT + AXIS + (many - 1) * ROW + 6 + "px";
    this.listen();
    this.draw();
    this.box.querySelector(".waiting").remove();
  }

  // ---- view -------------------------------------------------------------------------------------------------

  setView(begin, end) {
    const whole = Math.max(this.spec.length_us, 1), length = Math.min(Math.max(end - begin, 20), whole * 1.1);
    const least = Math.min(0, 1.05 * whole - length);
    this.begin = Math.max(-0.05 * whole, Math.min(begin, Math.max(least, 1.05 * whole - length)));
    this.end = this.begin + length;
    this.later();
  }

  zoom(factor, at = (this.begin + this.end) / 2) {
    this.setView(at - (at - this.begin) * factor, at + (this.end - at) * factor);
  }

  pan(share) { const d = (this.end - this.begin) * share; this.setView(this.begin + d, this.end + d); }

  home() { this.setView(0, this.spec.length_us); }

  /** Show the innermost phase before or behind the middle of the view, with a little around it. */
  step(direction) {
    if (!this.phases || !this.phases.rows.length) return;
    const row = this.phases.rows.reduce((a, b) => (b.begin.length > a.begin.length ? b : a));
    const middle = (this.begin + this.end) / 2;
    let i = countBelow(row.begin, middle) - 1;
    if (direction > 0) i += 1;
    else while (i > 0 && row.begin[i] + row.length[i] / 2 > middle - 1) i -= 1;
    if (direction > 0) while (i < row.begin.length - 1 && row.begin[i] + row.length[i] / 2 <= middle + 1) i += 1;
    i = Math.max(0, Math.min(i, row.begin.length - 1));
    const begin = row.begin[i], length = Math.max(row.length[i], 10);
    this.setView(begin - length / 4, begin + 1.25 * length);
    this.cursor = begin + length / 2;
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  // ---- events -----------------------------------------------------------------------------------------------

  listen() {
    const canvas = this.canvas, at = e => this.timeAt(e.clientX - canvas.getBoundingClientRect().left);
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
      const d = (e.clientX - dragged.x) / this.width * (dragged.end - dragged.begin);
      this.setView(dragged.begin - d, dragged.end - d);
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { dragged = null; });
    canvas.addEventListener("pointerleave", () => { if (!dragged) { this.cursor = null; this.later(); } });
    canvas.addEventListener("dblclick", () => this.home());
    canvas.addEventListener("keydown", e => {
      const keys = {
        ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1), "+": () => this.zoom(0.5),
        "=": () => this.zoom(0.5), "-": () => this.zoom(2), Home: () => this.home(),
        n: () => this.step(1), p: () => this.step(-1),
      };
      if (!keys[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
      e.preventDefault();
      keys[e.key]();
      if (e.key !== "n" && e.key !== "p") this.cursor = (this.begin + this.end) / 2;
    });
    const buttons = { in: () => this.zoom(0.5), out: () => this.zoom(2), all: () => this.home(),
      left: () => this.pan(-0.25), right: () => this.pan(0.25), next: () => this.step(1), previous: () => this.step(-1) };
    for (const b of this.box.querySelectorAll("button[data-do]")) b.addEventListener("click", buttons[b.dataset.do]);
    this.box.querySelectorAll("input[data-line]").forEach(input => input.addEventListener("change", () => {
      this.lines[Number(input.dataset.line)].shown = input.checked;
      this.later();
    }));
    new ResizeObserver(() => this.later()).observe(canvas);
  }

  timeAt(x) { return this.begin + (x - LEFT) / this.width * (this.end - this.begin); }

  // ---- drawing ----------------------------------------------------------------------------------------------

  draw() {
    const started = performance.now(), canvas = this.canvas, c = this.context;
    const ratio = window.devicePixelRatio || 1, full = canvas.clientWidth, height = canvas.clientHeight;
    if (!full) return;
    if (canvas.width !== Math.round(full * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(full * ratio); canvas.height = Math.round(height * ratio);
    }
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, full, height);
    this.width = full - LEFT - 8;
    this.scale = this.width / (this.end - this.begin);
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim(), faint = style.getPropertyValue("--faint").trim();
    c.font = "11px system-ui, sans-serif";
    const shapes = this.lines.filter(l => l.shown).map(l => this.shape(l));
    let low = 0, high = 0;
    for (const s of shapes) { low = Math.min(low, s.low); high = Math.max(high, s.high); }
    high = high > low ? high + 0.06 * (high - low) : low + 1;
    const y = watts => PLOT - (watts - low) / (high - low) * (PLOT - 10);
    this.axes(c, low, high, y, ink, faint, height);
    c.save();
    c.beginPath(); c.rect(LEFT, 0, this.width, height); c.clip();
    this.shadeGaps(c);
    for (const s of shapes) this.curve(c, s, y, style);
    if (this.phases) this.bands(c, ink, style);
    if (this.cursor !== null) {
      const x = Math.round(LEFT + (this.cursor - this.begin) * this.scale) + 0.5;
      c.strokeStyle = ink; c.globalAlpha = 0.6; c.lineWidth = 1;
      c.beginPath(); c.moveTo(x, 0); c.lineTo(x, height - AXIS); c.stroke();
      c.globalAlpha = 1;
    }
    c.restore();
    this.say();
    this.frames.push(performance.now() - started);
    if (this.frames.length > 2000) this.frames.shift();
  }

  /** What of a line is in view: its points where they are few, else least and greatest of each column of pixels. */
  shape(line) {
    const { time, spec } = line, n = time.length;
    const first = Math.max(countBelow(time, this.begin) - 1, 0);
    const last = Math.min(countBelow(time, this.end) + 1, n);
    if (last - first <= 2 * this.width) {
      let low = Infinity, high = -Infinity;
      for (let i = first; i < last; i++) {
        if (line.low[i] < low) low = line.low[i];
        if (line.high[i] > high) high = line.high[i];
      }
      return { line, first, last, low, high };
    }
    let k = 0;
    while (k + 1 < line.levels.length && (last - first) / line.levels[k + 1].size > 2 * this.width) k += 1;
    const level = line.levels[k], from = Math.floor(first / level.size), to = Math.ceil(last / level.size);
    const columns = Math.ceil(this.width) + 2;
    const lows = new Float32Array(columns).fill(Infinity), highs = new Float32Array(columns).fill(-Infinity);
    let low = Infinity, high = -Infinity;
    for (let i = from; i < to; i++) {
      const x = Math.floor((level.time[i] - this.begin) * this.scale);
      if (x < 0 || x >= columns) continue;
      if (level.low[i] < lows[x]) lows[x] = level.low[i];
      if (level.high[i] > highs[x]) highs[x] = level.high[i];
      if (level.low[i] < low) low = level.low[i];
      if (level.high[i] > high) high = level.high[i];
    }
    return { line, lows, highs, low, high, joined: (spec.gap_us + (time[n - 1] - time[0]) / n * level.size) * this.scale };
  }

  curve(c, shape, y, style) {
    const { spec, time } = shape.line;
    const name = spec.role === "sum" ? "--ink" : "--line" + (this.spec.lines.indexOf(spec) % 8);
    c.strokeStyle = c.fillStyle = style.getPropertyValue(name).trim();
    c.lineWidth = spec.role === "sum" ? 1.4 : 1;
    c.setLineDash(spec.role === "compared" && !shape.lows ? [5, 3] : []);
    c.globalAlpha = spec.role === "compared" ? 0.75 : 1;
    c.beginPath();
    if (shape.lows) this.pixels(c, shape, y);
    else if (shape.line.low === shape.line.high) this.points(c, shape, y, spec, time);
    else this.blocks(c, shape, y, time);
    c.stroke();
    c.setLineDash([]); c.globalAlpha = 1;
  }

  pixels(c, shape, y) {
    let before = -Infinity;
    for (let x = 0; x < shape.lows.length; x++) {
      if (shape.highs[x] < shape.lows[x]) continue;
      const top = y(shape.highs[x]), bottom = y(shape.lows[x]);
      if (x - before > Math.max(shape.joined, 1)) c.moveTo(LEFT + x, top); else c.lineTo(LEFT + x, top);
      c.lineTo(LEFT + x, Math.max(bottom, top + 0.8));
      before = x;
    }
  }

  points(c, shape, y, spec, time) {
    const dots = shape.last - shape.first < this.width / 5;
    for (let i = shape.first; i < shape.last; i++) {
      const x = LEFT + (time[i] - this.begin) * this.scale, top = y(shape.line.low[i]);
      if (i > shape.first && time[i] - time[i - 1] <= spec.gap_us) c.lineTo(x, top); else c.moveTo(x, top);
      if (dots) c.fillRect(x - 1.5, top - 1.5, 3, 3);
    }
  }

  blocks(c, shape, y, time) {
    for (let i = shape.first; i < shape.last; i++) {
      const end = i + 1 < time.length ? Math.min(time[i + 1], time[i] + shape.line.spec.gap_us) : time[i];
      const x = LEFT + (time[i] - this.begin) * this.scale, w = Math.max((end - time[i]) * this.scale, 1);
      c.fillRect(x, y(shape.line.high[i]), w, Math.max(y(shape.line.low[i]) - y(shape.line.high[i]), 1));
    }
  }

  // ---- words ------------------------------------------------------------------------------------------------

  /** Time, power and phases at the cursor; without one, what is in view. */
  say() {
    if (this.cursor === null) {
      const begin = Math.max(this.begin, 0), span = this.end - begin;
      if (span > 0.01 * this.end) this.put(`${duration(begin)} to ${duration(this.end)}`);
      else this.put(`${duration(span)} from ${(begin / 1e6).toFixed(6)} s on`);
      return;
    }
    const t = this.cursor, said = [];
    for (const line of this.lines) {
      if (!line.shown || !line.time.length) continue;
      let i = countBelow(line.time, t);
      if (line.spec.block > 1) i = Math.max(i - 1, 0);
      else if (i > 0 && (i === line.time.length || t - line.time[i - 1] < line.time[i] - t)) i -= 1;
      if (Math.abs(line.time[i] - t) > line.spec.gap_us) { said.push(`${line.spec.name}: no reading`); continue; }
      const low = significant(line.low[i]), high = significant(line.high[i]);
      said.push(`${line.spec.name}: ${low === high ? low : low + " to " + high} W`);
    }
    const inside = [];
    for (const row of this.phases ? this.phases.rows : []) {
      const i = countBelow(row.begin, t) - 1;
      if (i < 0 || row.begin[i] + row.length[i] < t) continue;
      const detail = this.phases.details[row.label[i]];
      inside.push(this.phases.names[row.label[i]] + (inside.length || !detail ? "" : ` (${detail})`) + ` ${duration(row.length[i])}`);
    }
    this.put([`at ${(t / 1e6).toFixed(6)} s`, ...said, inside.join(" › ")].filter(Boolean).join(" · "));
  }

  put(text) { if (this.out.textContent !== text) this.out.textContent = text; }
}
