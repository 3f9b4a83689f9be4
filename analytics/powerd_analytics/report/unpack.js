"use strict";
// Columns of whole numbers out of the page's texts, and pyramids of least and greatest for drawing them.

/** Bytes of a base64 text, inflated. */
async function inflate(text) {
  const packed = atob(text);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Whole numbers: sums of folded differences whose bytes lie in planes, lowest first. */
async function unpack(column) {
  const bytes = await inflate(document.getElementById(column.id).textContent);
  const n = column.n, values = new Float64Array(n);
  let sum = 0;
  for (let i = 0; i < n; i++) {
    let folded = 0, weight = 1;
    for (let k = 0; k < column.planes; k++) { folded += bytes[k * n + i] * weight; weight *= 256; }
    sum += folded % 2 ? -(folded + 1) / 2 : folded / 2;
    values[i] = sum;
  }
  return values;
}

async function unpackWatts(values) {
  const columns = [];
  for (const column of values.columns) {
    const codes = await unpack(column), watts = new Float32Array(codes.length);
    for (let i = 0; i < codes.length; i++) watts[i] = values.low + values.step * codes[i];
    columns.push(watts);
  }
  return columns;
}

const FACTOR = 4;

/** Levels of least and greatest with the time of their first; each entry covers FACTOR of the level below. */
function pyramid(low, high, time) {
  const levels = [{ low, high, time, size: 1 }];
  while (levels[levels.length - 1].low.length > 512) {
    const below = levels[levels.length - 1], n = Math.ceil(below.low.length / FACTOR);
    const lows = new Float32Array(n), highs = new Float32Array(n), times = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      let lo = Infinity, hi = -Infinity;
      const end = Math.min((i + 1) * FACTOR, below.low.length);
      for (let k = i * FACTOR; k < end; k++) {
        if (below.low[k] < lo) lo = below.low[k];
        if (below.high[k] > hi) hi = below.high[k];
      }
      lows[i] = lo; highs[i] = hi; times[i] = below.time[i * FACTOR];
    }
    levels.push({ low: lows, high: highs, time: times, size: below.size * FACTOR });
  }
  return levels;
}

/** How many of the sorted values lie below x. */
function countBelow(values, x, from = 0, to = values.length) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] < x) from = middle + 1; else to = middle;
  }
  return from;
}

function significant(x, digits = 4) {
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size < 1e-6 || size >= 1e9) return x.toExponential(digits - 1);
  return x.toFixed(Math.max(0, Math.min(9, digits - 1 - Math.floor(Math.log10(size)))));
}

/** Microseconds as a duration for people. */
function duration(us) {
  if (us === 0) return "0 s";
  if (us >= 1e6) return significant(us / 1e6) + " s";
  return us >= 1e3 ? significant(us / 1e3) + " ms" : significant(us, 3) + " µs";
}
