// What stands around the curves of a trace: axes, stretches without readings, phases as bands.

Object.assign(Trace.prototype, {
  axes(c, low, high, y, ink, faint, height) {
    c.fillStyle = ink; c.strokeStyle = faint; c.lineWidth = 1;
    c.textAlign = "right"; c.textBaseline = "middle";
    for (const w of ticks(low, high, 5)) {
      c.beginPath(); c.moveTo(LEFT, Math.round(y(w)) + 0.5); c.lineTo(LEFT + this.width, Math.round(y(w)) + 0.5); c.stroke();
      c.fillText(tickText(w, (high - low) / 5) + " W", LEFT - 5, y(w));
    }
    c.textAlign = "center"; c.textBaseline = "alphabetic";
    const span = this.end - this.begin, small = span < 3e3 ? ["µs", 1] : span < 3e6 ? ["ms", 1e3] : ["s", 1e6];
    // Far into a run, seconds with decimals are shorter than that many small ones.
    const unit = this.end < 1e5 * small[1] ? small : ["s", 1e6];
    const many = Math.max(3, Math.floor(this.width / 110));
    for (const t of ticks(this.begin / unit[1], this.end / unit[1], many)) {
      const x = LEFT + (t * unit[1] - this.begin) * this.scale;
      c.fillText(tickText(t, span / unit[1] / many) + " " + unit[0], x, height - 6);
      c.beginPath(); c.moveTo(x, height - AXIS); c.lineTo(x, height - AXIS + 4); c.stroke();
    }
  },

  shadeGaps(c) {
    c.fillStyle = "#888";
    // Gaps that share a column of pixels shade it once: on top of each other they would hide the curves.
    let shaded = -Infinity;
    for (const [begin, end] of this.spec.gaps) {
      if (end < this.begin || begin > this.end) continue;
      const left = LEFT + (begin - this.begin) * this.scale, right = left + Math.max((end - begin) * this.scale, 1);
      if (right <= shaded) continue;
      // Of less than a pixel, lighter: many short ones would pass for a run without readings.
      c.globalAlpha = (end - begin) * this.scale < 1 ? 0.12 : 0.3;
      c.fillRect(Math.max(left, shaded), 0, right - Math.max(left, shaded), PLOT);
      shaded = right;
    }
    c.globalAlpha = 1;
  },

  bands(c, ink, style) {
    const colours = Array.from({ length: 8 }, (_, i) => style.getPropertyValue("--phase" + i).trim());
    c.textBaseline = "middle"; c.textAlign = "left";
    this.phases.rows.forEach((row, r) => {
      const top = PLOT + 4 + r * ROW;
      const first = Math.max(countBelow(row.begin, this.begin) - 1, 0);
      const last = countBelow(row.begin, this.end);
      if (last - first > this.width / 2) { this.bandColumns(c, row, top, colours, last - first); return; }
      for (let i = first; i < last; i++) {
        const x = LEFT + (row.begin[i] - this.begin) * this.scale, w = row.length[i] * this.scale;
        if (x + w < LEFT) continue;
        c.fillStyle = colours[this.phases.colour[row.label[i]]];
        c.fillRect(x, top, Math.max(w - (w > 3 ? 0.7 : 0), 0.5), ROW - 2);
        if (w > 34) {
          const left = Math.max(x, LEFT), room = Math.min(x + w, LEFT + this.width) - left - 6;
          let text = this.phases.names[row.label[i]];
          while (text.length > 1 && c.measureText(text).width > room) text = text.slice(0, -2) + "…";
          if (room > 14) { c.fillStyle = "#000"; c.fillText(text, left + 3, top + ROW / 2 - 0.5); }
        }
      }
    });
  },

  /**
   * One look-up for each column of pixels, so that a million phases cost no more than a thousand. Where several fall
   * into a column, their colours would be chance: one colour for all, and their number.
   */
  bandColumns(c, row, top, colours, count) {
    const many = count > this.width;
    let from = 0, before = -1;
    for (let x = 0; x <= this.width; x++) {
      const t = this.begin + (x + 0.5) / this.scale, i = countBelow(row.begin, t) - 1;
      const inside = x + 1 <= this.width && i >= 0 && row.begin[i] + row.length[i] >= t;
      const now = inside ? (many ? 6 : this.phases.colour[row.label[i]]) : -1;
      if (now === before) continue;
      if (before >= 0) { c.fillStyle = colours[before]; c.fillRect(LEFT + from, top, x - from, ROW - 2); }
      from = x; before = now;
    }
    if (many) { c.fillStyle = "#000"; c.fillText(`${count} phases: zoom in to see them`, LEFT + 6, top + ROW / 2 - 0.5); }
  },
});

function ticks(low, high, many) {
  const rough = (high - low) / many, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * size).find(s => s >= rough) || 10 * size, found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-12); i++) found.push(i * step);
  return found;
}

function tickText(x, step) { return x.toFixed(Math.max(0, Math.min(6, Math.ceil(-Math.log10(step) - 1e-9)))); }
