/* The timeline's data and words, for timeline.js: what report/html/timeline.py wrote, as columns; times and sizes as text. */
"use strict";

(function () {
  const NUM_HUES = 7;
  const KIND_WORDS = {
    op: "operators", mark: "marks", call: "runtime calls", compile: "compiling",
    copy: "copies", set: "sets", collective: "collectives",
  };

  /* ---- data: columns out of deltas ---- */

  function decode(data) {
    const n = data.start.length, start = new Float64Array(n), end = new Float64Array(n), row = new Int32Array(n);
    const rowFirst = [0], launch = new Int32Array(n).fill(-1), count = new Int32Array(n).fill(1);
    const busy = Float64Array.from(data.dur), size = new Map(), launched = new Map();
    let i = 0;
    data.rows.forEach((num, r) => {
      for (let at = 0, stop = i + num; i < stop; i++) {
        at += data.start[i];
        start[i] = at;
        end[i] = at + data.dur[i];
        row[i] = r;
      }
      rowFirst.push(i);
    });
    for (let k = 0, who = 0, by = 0; k < data.launched.length; k++) {
      who += data.launched[k];
      by += data.launch[k];
      launch[who] = by;
      if (!launched.has(by)) launched.set(by, []);
      launched.get(by).push(who);
    }
    for (let k = 0; k < data.blocks.length; k += 3) {
      count[data.blocks[k]] = data.blocks[k + 1];
      busy[data.blocks[k]] = data.blocks[k + 2];
    }
    for (let k = 0; k < data.sizes.length; k += 2) size.set(data.sizes[k], data.sizes[k + 1]);
    const whats = [];
    for (let k = 0; k < data.whats.length; k += data.fields.length) {
      whats.push(Object.fromEntries(data.fields.map((field, f) => [field, data.strings[data.whats[k + f]]])));
    }
    let first = 0;
    const lanes = data.lanes.map(([label, kind, numRows]) => {
      first += numRows;
      return { label, kind, numRows, firstRow: first - numRows, shut: false };
    });
    const laneOf = lanes.flatMap((lane) => Array(lane.numRows).fill(lane));
    const gapStart = [];
    data.gaps.reduce((at, dur) => (gapStart.push(at), at + dur), data.window[0]);
    return { n, start, end, row, rowFirst, launch, launched, count, busy, size, what: data.what, whats, lanes, laneOf, gapStart };
  }

  /* ---- words ---- */

  function time(ns) {
    const [unit, per] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]].find(([, p]) => Math.abs(ns) >= p) || ["ns", 1];
    const value = ns / per;
    return value.toFixed(per === 1 || Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2) + "\u00a0" + unit;
  }
  function bytes(size) {
    const [unit, per] = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]].find(([, p]) => size >= p) || ["B", 1];
    return (size / per).toFixed(per === 1 ? 0 : 1) + "\u00a0" + unit;
  }
  function amount(n) {
    return String(n).replace(/\B(?=(\d{3})+$)/g, "\u00a0");
  }

  /* ---- what a slice is called and how it is coloured ---- */

  function model(data) {
    const made = decode(data), categories = topCategories(made);
    const label = (i) => labelOf(made, i);
    const hues = Array.from({ length: made.n }, (_, i) => hueOf(made, categories, i));
    /* The launch of a kernel, the (first) kernel of a launch. */
    const counterpart = (i) => (made.launch[i] >= 0 ? made.launch[i] : (made.launched.get(i) || [])[0]);
    return { ...made, categories, hues, label, counterpart };
  }
  /* The kinds of kernel with the most time have colours of their own. */
  function topCategories(made) {
    const spent = new Map();
    for (let i = 0; i < made.n; i++) {
      const what = made.whats[made.what[i]];
      if (what.kind === "kernel" && what.category && made.laneOf[made.row[i]].kind === "stream") {
        spent.set(what.category, (spent.get(what.category) || 0) + made.busy[i]);
      }
    }
    return [...spent].sort((a, b) => b[1] - a[1]).map(([name]) => name).slice(0, NUM_HUES);
  }
  function hueOf(made, categories, i) {
    const what = made.whats[made.what[i]], lane = made.laneOf[made.row[i]], hue = categories.indexOf(what.category);
    if (lane.kind === "collectives") return "collective";
    if (Object.hasOwn(KIND_WORDS, what.kind)) return what.kind;
    return lane.kind === "host" || hue < 0 ? "mixed" : `hue-${hue}`;
  }
  function middleCut(text) {
    return text.length <= 60 ? text : `${text.slice(0, 40)}…${text.slice(-19)}`;
  }
  function labelOf(made, i) {
    const what = made.whats[made.what[i]], many = made.count[i];
    const name = middleCut((made.laneOf[made.row[i]].kind === "collectives" && what.category) || what.label || what.name);
    return many > 1 ? `${amount(many)}${name ? " × " + name : " small slices"}` : name || "(no name)";
  }

  window.stepscopeTimelineParts = { NUM_HUES, KIND_WORDS, model, time, bytes, amount };
})();
