/* The timeline of one step, on a canvas. `stepscopeTimeline(element, data, options)` draws what report/html/timeline.py wrote.

   Names come from strangers' files: they reach the page through textContent and fillText alone.
   options.wheel: "focus" (the wheel zooms once the timeline was clicked or reached by Tab; before, the page scrolls) or "always".
   Returns {fit, zoom, pan, select, selectPart, toggle, redraw, refresh, view, destroy}; refresh() reads the colours again. */
"use strict";

(function () {
  const AXIS = 24, HEAD = 20, STEP_ROW = 26, ROW = { host: 15, stream: 20, collectives: 20 }, SHUT_ROW = 8, LANE_GAP = 6;
  const MIN_VIEW_NS = 100, MOST_ARROWS = 40, MOST_HEIGHT = 900, FLOW = 8, COLUMN = 2;
  let numMade = 0;

  const { NUM_HUES, KIND_WORDS, model: modelOf, time } = window.stepscopeTimelineParts;
  const { legend, kinds, leftOut, longest, details, make, button, named } = window.stepscopeTimelineParts;

  window.stepscopeTimeline = function (element, data, options = {}) {
    const model = modelOf(data), { start, end, rowFirst, hues, label } = model;
    const [windowLow, windowHigh] = data.window, worldLow = Math.min(0, windowLow);
    const view = { low: windowLow, high: windowHigh };
    const id = `stepscope-timeline-${++numMade}`;
    const listeners = new AbortController(), signal = listeners.signal;
    let width = 0, height = 0, colours = {}, selected = null, hovered = null, frame = 0, rowTop = [], rowHeight = [];

    /* -- colours -- */

    function readColours() {
      const style = getComputedStyle(element), names = ["ink", "paper", "muted", "line", "accent", "mixed"];
      names.push(...Object.keys(KIND_WORDS));
      for (let k = 0; k < NUM_HUES; k++) names.push(`hue-${k}`);
      data.parts.forEach(([part]) => names.push(`part-${part}`));
      colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--t-${name}`).trim() || "#888"]));
      colours.font = style.fontFamily;
    }

    /* -- the parts of the page -- */

    element.classList.add("stepscope-timeline");
    element.textContent = "";
    const bar = make("div", "t-bar");
    const stage = make("div", "t-stage"), canvas = make("canvas", "t-canvas");
    const heads = make("div", "t-heads"), tip = make("div", "t-tip");
    const panel = make("div", "t-panel"), help = make("p", "t-help"), context = canvas.getContext("2d");
    const stepWord = data.num_steps > 1 ? `step ${data.step + 1} of ${data.num_steps} measured` : "the measured step";
    const controls = make("span", "t-controls");
    bar.append(make("span", "t-title", `Rank ${data.rank}, ${stepWord}: ${time(windowHigh - windowLow)}`), controls);
    controls.append(
      named(button("t-button", "−", () => zoom(1.5)), "Zoom out"),
      named(button("t-button", "+", () => zoom(1 / 1.5)), "Zoom in"),
      button("t-button", "Fit", fit),
    );
    help.id = `${id}-help`;
    help.textContent =
      "Drag or arrow keys pan; click it, then the wheel zooms; + and − zoom, 0 or a double click fits. Click a slice for its " +
      "details; Shift and an arrow key go to the next slice, Enter to its launch or its kernel, Escape lets go.";
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    named(canvas, `Timeline of rank ${data.rank}, ${stepWord}. The longest slices are listed in a table below.`);
    canvas.setAttribute("aria-describedby", help.id);
    panel.setAttribute("aria-live", "polite");
    panel.setAttribute("role", "status");
    stage.append(canvas, heads, tip);
    element.append(bar, legend(data, selectPart), stage, kinds(model), panel, help, leftOut(data), longest(data, model, select));

    /* -- layout: lanes below each other, each with its head -- */

    function layOut() {
      let top = AXIS + HEAD + STEP_ROW + LANE_GAP;
      for (const lane of model.lanes) {
        lane.top = top;
        top += HEAD;
        for (let r = lane.firstRow; r < lane.firstRow + lane.numRows; r++) {
          rowTop[r] = top;
          rowHeight[r] = lane.shut ? (r === lane.firstRow ? SHUT_ROW : 0) : ROW[lane.kind];
          top += rowHeight[r];
        }
        lane.bottom = top;
        lane.head.style.top = `${lane.top}px`;
        lane.head.setAttribute("aria-expanded", String(!lane.shut));
        lane.head.firstChild.textContent = lane.shut ? "▸" : "▾";
        top += LANE_GAP;
      }
      height = top;
      canvas.style.height = `${height}px`;
      resize();
    }
    function toggle(number) {
      const lane = model.lanes[number];
      lane.shut = !lane.shut;
      layOut();
    }
    function makeHeads() {
      const step = make("span", "t-head", data.where === "device" ? "the device's step, by cause" : "the host's step, by cause");
      step.style.top = `${AXIS}px`;
      heads.append(step);
      let tall = 0;
      model.lanes.forEach((lane, number) => {
        lane.head = button("t-head t-fold", "", () => toggle(number));
        lane.head.append(make("span", "t-mark", ""), make("span", "", `${lane.label}`));
        heads.append(lane.head);
        tall += HEAD + LANE_GAP + lane.numRows * ROW[lane.kind];
        // Threads that do nothing in the step begin folded, and those after the first two when a screen has no room for all.
        lane.shut = lane.kind === "host" && ((tall > MOST_HEIGHT && number > 1) || !isSeen(lane));
      });
    }
    function isSeen(lane) {
      const low = rowFirst[lane.firstRow], high = rowFirst[lane.firstRow + lane.numRows];
      return end.subarray(low, high).some((ns) => ns > windowLow);
    }
    function resize() {
      width = Math.max(1, canvas.clientWidth);
      const ratio = window.devicePixelRatio || 1;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      draw();
    }

    /* -- drawing -- */

    const xOf = (ns) => ((ns - view.low) / (view.high - view.low)) * width;
    const nsOf = (x) => view.low + (x / width) * (view.high - view.low);

    function redraw() {
      if (!frame) frame = requestAnimationFrame(draw);
    }
    function draw() {
      cancelAnimationFrame(frame);
      frame = 0;
      const ratio = canvas.width / width;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.fillStyle = colours.paper;
      context.fillRect(0, 0, width, height);
      context.textBaseline = "middle";
      drawAxis();
      drawGaps();
      for (let r = 0; r < data.rows.length; r++) if (rowHeight[r]) drawRow(r);
      drawBefore();
      drawLinks();
    }

    function drawAxis() {
      const raw = ((view.high - view.low) / width) * 72, power = 10 ** Math.floor(Math.log10(raw));
      const pitch = [1, 2, 5, 10].map((f) => f * power).find((f) => f >= raw);
      const far = Math.max(Math.abs(view.low - windowLow), Math.abs(view.high - windowLow));
      const [unit, per] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]].find(([, p]) => far >= p && pitch >= p / 1e3) || ["ns", 1];
      const decimals = Math.max(0, Math.ceil(-Math.log10(pitch / per) - 1e-9));
      context.font = `11px ${colours.font}`;
      for (let t = Math.ceil((view.low - windowLow) / pitch) * pitch; t <= view.high - windowLow; t += pitch) {
        const x = Math.round(xOf(t + windowLow)) + 0.5;
        context.fillStyle = colours.line;
        context.fillRect(x, AXIS - 6, 1, height);
        context.fillStyle = colours.muted;
        const text = Math.abs(t) < pitch / 2 ? "0" : `${(t / per).toFixed(decimals)}\u00a0${unit}`;
        if (x + 3 + context.measureText(text).width < width) context.fillText(text, x + 3, AXIS / 2);
      }
    }

    /* Where pieces are smaller than a column of pixels it is split among them by their share. */
    function drawGaps() {
      const parts = data.parts.length, columns = Math.ceil(width / COLUMN), share = new Float32Array(columns * parts);
      for (let k = firstGap(view.low); k < data.gaps.length && model.gapStart[k] < view.high; k++) {
        const from = model.gapStart[k], part = data.gap_parts[k];
        const a = Math.max(0, xOf(from) / COLUMN), b = Math.min(columns, xOf(from + data.gaps[k]) / COLUMN);
        for (let c = Math.floor(a); c < b; c++) share[c * parts + part] += Math.min(b, c + 1) - Math.max(a, c);
      }
      drawParts(share, parts, columns);
      drawIdle(share, parts, columns);
    }
    function drawParts(share, parts, columns) {
      const tops = new Float32Array(columns).fill(AXIS + HEAD);
      for (let p = 0; p < parts; p++) {
        context.fillStyle = colours[`part-${data.parts[p][0]}`];
        for (let c = 0, run; c < columns; c += run) {
          const part = share[c * parts + p];
          run = 1;
          if (part <= 0) continue;
          while (part > 0.999 && c + run < columns && share[(c + run) * parts + p] > 0.999) run++;
          context.fillRect(c * COLUMN, tops[c], run * COLUMN, part * STEP_ROW);
          for (let k = c; k < c + run; k++) tops[k] += part * STEP_ROW;
        }
      }
    }
    /* Behind the streams, where none of them worked: the main cause of each column, the stronger the more of it was idle. */
    function drawIdle(share, parts, columns) {
      const isIdle = data.parts.map(([part]) => part.startsWith("idle_"));
      const streams = model.lanes.filter((lane) => lane.kind === "stream");
      const shade = (c) => {
        let idle = 0, worst = -1;
        for (let p = 0; p < parts; p++) {
          const part = isIdle[p] ? share[c * parts + p] : 0;
          idle += part;
          if (part > 0 && (worst < 0 || part > share[c * parts + worst])) worst = p;
        }
        return worst < 0 ? 0 : worst * 5 + Math.round(4 * idle);
      };
      for (let c = 0, here = shade(0), next; c < columns; c = next, here = shade(c)) {
        for (next = c + 1; next < columns && shade(next) === here; ) next++;
        if (here % 5 === 0) continue;
        context.globalAlpha = 0.1 * (here % 5);
        context.fillStyle = colours[`part-${data.parts[Math.floor(here / 5)][0]}`];
        for (const lane of streams) {
          context.fillRect(c * COLUMN, lane.top + HEAD, (next - c) * COLUMN, lane.bottom - lane.top - HEAD);
        }
      }
      context.globalAlpha = 1;
    }
    function firstGap(ns) {
      return Math.max(0, after(model.gapStart, ns, 0, data.gaps.length) - 1);
    }
    function after(values, wanted, low, high) {
      while (low < high) {
        const middle = (low + high) >> 1;
        if (values[middle] > wanted) high = middle;
        else low = middle + 1;
      }
      return low;
    }

    /* Slices of a pixel or two flow together where they touch and look alike; the paler, the less of that stretch they fill. */
    function drawRow(r) {
      const top = rowTop[r], tall = rowHeight[r] - 1, last = rowFirst[r + 1], labels = [];
      let left = 0, right = -1, covered = 0, hue = null, flows = false, filled = "";
      const paint = () => {
        if (hue === null) return;
        if (filled !== hue) context.fillStyle = colours[(filled = hue)];
        context.globalAlpha = Math.min(1, Math.max(flows ? 0.4 : right - left < 3 ? 0.8 : 0.5, covered / (right - left)));
        context.fillRect(left, top, !flows && right - left > 3 ? right - left - 0.5 : right - left, tall);
      };
      for (let i = after(end, view.low, rowFirst[r], last); i < last && start[i] < view.high; i++) {
        const x = Math.max(-1, xOf(start[i])), stop = Math.min(width + 1, xOf(end[i]));
        const a = Math.max(x, right), b = Math.max(a + 1, stop), fills = Math.max(stop - x, 0) * busyShare(i);
        if (stop < right || (hues[i] === hue && a - right < 0.5 && b - a < 2 && b - left < FLOW)) {
          if (stop >= right) right = b;
          covered += fills;
          flows = true;
          continue;
        }
        paint();
        [left, right, covered, hue, flows] = [a, b, fills, hues[i], false];
        if (b - a > 26 && tall > 10) labels.push([i, a, b - a]);
      }
      paint();
      context.globalAlpha = 1;
      context.font = `10.5px ${colours.font}`;
      for (const [i, at, wide] of labels) drawLabel(label(i), at + 3, top + tall / 2 + 0.5, wide - 6);
    }
    function busyShare(i) {
      return model.count[i] > 1 ? model.busy[i] / Math.max(1, end[i] - start[i]) : 1;
    }
    function drawLabel(text, x, y, room) {
      const most = Math.floor(room / 5.6);
      context.fillStyle = colours.ink;
      context.fillText(text.length <= most ? text : text.slice(0, Math.max(1, most - 1)) + "…", x, y, room);
    }

    function drawBefore() {
      const x = xOf(windowLow);
      if (x <= 0) return;
      context.globalAlpha = 0.55;
      context.fillStyle = colours.paper;
      context.fillRect(0, AXIS, x, height);
      context.globalAlpha = 1;
      context.fillStyle = colours.muted;
      context.fillRect(x - 1, AXIS, 1, height);
      context.font = `11px ${colours.font}`;
      if (x > 110) context.fillText("before this step", Math.max(4, x - 96), AXIS + HEAD + STEP_ROW / 2);
    }

    function boxOf(i) {
      const lane = model.laneOf[model.row[i]], row = lane.shut ? lane.firstRow : model.row[i];
      const x = xOf(start[i]);
      return { x, y: rowTop[row], wide: Math.max(2, xOf(end[i]) - x), tall: rowHeight[row] - 1 };
    }
    function linked(i) {
      if (model.launch[i] >= 0) return [[model.launch[i], i]];
      return (model.launched.get(i) || []).slice(0, MOST_ARROWS).map((kernel) => [i, kernel]);
    }
    function drawLinks() {
      for (const one of [hovered, selected]) {
        if (one === null) continue;
        const isGap = one.gap !== undefined;
        context.strokeStyle = context.fillStyle = colours.accent;
        if (isGap) {
          const x = xOf(model.gapStart[one.gap]), right = xOf(model.gapStart[one.gap] + data.gaps[one.gap]);
          outline({ x, y: AXIS + HEAD, wide: Math.max(2, right - x), tall: STEP_ROW }, 2);
          continue;
        }
        for (const [call, kernel] of linked(one.slice)) {
          const a = boxOf(call), b = boxOf(kernel);
          outline(a, 1.5);
          outline(b, 1.5);
          arrow(a.x, a.y + a.tall, Math.max(b.x, a.x - 1e4), b.y);
        }
        outline(boxOf(one.slice), 2.5);
      }
    }
    function outline(box, wide) {
      const left = Math.max(-5, box.x), right = Math.min(width + 5, box.x + box.wide);
      context.lineWidth = wide;
      if (right > left) context.strokeRect(left, box.y, right - left, box.tall);
    }
    function arrow(x0, y0, x1, y1) {
      const bend = Math.max(12, Math.abs(y1 - y0) / 2);
      context.lineWidth = 1.25;
      context.beginPath();
      context.moveTo(x0, y0);
      context.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
      context.stroke();
      context.beginPath();
      context.moveTo(x1, y1);
      context.lineTo(x1 - 4, y1 - 7);
      context.lineTo(x1 + 4, y1 - 7);
      context.fill();
    }

    /* -- what is under the pointer, and its details -- */

    function hit(x, y) {
      const ns = nsOf(x), slack = (2.5 / width) * (view.high - view.low);
      if (y >= AXIS + HEAD && y < AXIS + HEAD + STEP_ROW) {
        return ns >= windowLow && ns < windowHigh ? { gap: firstGap(ns) } : null;
      }
      const r = rowTop.findIndex((top, k) => y >= top && y < top + rowHeight[k]);
      if (r < 0) return null;
      const i = after(end, ns, rowFirst[r], rowFirst[r + 1]);
      const near = [i - 1, i].filter((k) => k >= rowFirst[r] && k < rowFirst[r + 1]);
      const away = (k) => Math.max(start[k] - ns, ns - end[k], 0);
      const best = near.sort((a, b) => away(a) - away(b))[0];
      return best !== undefined && away(best) <= slack ? { slice: best } : null;
    }

    function choose(one, reveal) {
      selected = one;
      details(panel, data, model, one, select);
      if (one !== null && reveal) bringIntoView(one);
      redraw();
    }
    function select(i, reveal = true) {
      choose({ slice: i }, reveal);
    }
    function selectPart(p) {
      let best = -1;
      data.gaps.forEach((dur, k) => data.gap_parts[k] === p && (best < 0 || dur > data.gaps[best]) && (best = k));
      if (best >= 0) choose({ gap: best }, true);
    }
    function bringIntoView(one) {
      const isGap = one.gap !== undefined, low = isGap ? model.gapStart[one.gap] : start[one.slice];
      const high = isGap ? low + data.gaps[one.gap] : end[one.slice];
      const tiny = ((view.high - view.low) / width) * 8;
      if (low >= view.low && high <= view.high && high - low >= tiny) return;
      const span = high - low < tiny ? (high - low || 1) * 40 : Math.max(view.high - view.low, (high - low) * 1.1);
      move((low + high) / 2 - span / 2, (low + high) / 2 + span / 2);
    }
    function neighbour(direction) {
      if (selected === null || selected.gap !== undefined) return select(firstOfInterest());
      const i = selected.slice + direction;
      if (i >= rowFirst[model.row[selected.slice]] && i < rowFirst[model.row[selected.slice] + 1]) select(i);
    }
    function otherRow(direction) {
      if (selected === null || selected.gap !== undefined) return select(firstOfInterest());
      const middle = (start[selected.slice] + end[selected.slice]) / 2;
      for (let r = model.row[selected.slice] + direction; r >= 0 && r < data.rows.length; r += direction) {
        if (!rowHeight[r] || rowFirst[r] === rowFirst[r + 1]) continue;
        return select(Math.min(after(end, middle, rowFirst[r], rowFirst[r + 1]), rowFirst[r + 1] - 1));
      }
    }
    function firstOfInterest() {
      const lane = model.lanes.find((one) => one.kind === "stream") || model.lanes[0];
      const first = after(end, Math.max(view.low, windowLow), rowFirst[lane.firstRow], rowFirst[lane.firstRow + 1]);
      return Math.min(first, rowFirst[lane.firstRow + 1] - 1);
    }
    function counterpart() {
      if (selected === null || selected.gap !== undefined) return;
      const other = model.counterpart(selected.slice);
      if (other !== undefined) select(other);
    }

    /* -- moving about -- */

    function move(low, high) {
      const world = windowHigh - worldLow, span = Math.min(world, Math.max(MIN_VIEW_NS, high - low));
      view.low = Math.min(Math.max(worldLow, (low + high - span) / 2), windowHigh - span);
      view.high = view.low + span;
      redraw();
    }
    function zoom(factor, ns = (view.low + view.high) / 2) {
      const span = Math.min(windowHigh - worldLow, Math.max(MIN_VIEW_NS, (view.high - view.low) * factor));
      const low = ns - ((ns - view.low) / (view.high - view.low)) * span;
      move(low, low + span);
    }
    function pan(share) {
      const by = (view.high - view.low) * share;
      move(view.low + by, view.high + by);
    }
    function fit() {
      move(windowLow, windowHigh);
    }

    const KEYS = {
      "+": () => zoom(1 / 1.5), "=": () => zoom(1 / 1.5), "-": () => zoom(1.5), _: () => zoom(1.5), 0: fit,
      ArrowLeft: (event) => (event.shiftKey ? neighbour(-1) : pan(-0.15)),
      ArrowRight: (event) => (event.shiftKey ? neighbour(1) : pan(0.15)),
      ArrowUp: () => otherRow(-1), ArrowDown: () => otherRow(1),
      Home: () => move(windowLow, windowLow + view.high - view.low),
      End: () => move(windowHigh - (view.high - view.low), windowHigh),
      Enter: counterpart, Escape: () => choose(null, false),
    };

    const fingers = new Map();
    let travelled = 0;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    const on = (target, type, handler, more = {}) => target.addEventListener(type, handler, { signal, ...more });

    on(canvas, "keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(KEYS, event.key)) return;
      event.preventDefault();
      hover(null);
      if (model.n) KEYS[event.key](event);
    });
    on(canvas, "wheel", (event) => {
      const wanted = event.ctrlKey || event.metaKey || options.wheel === "always" || document.activeElement === canvas;
      const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (!wanted && !sideways) return;
      event.preventDefault();
      const delta = (event.deltaY || event.deltaX) * (event.deltaMode === 1 ? 16 : 1);
      if (sideways) pan((event.deltaX || event.deltaY) / width);
      else zoom(Math.exp(Math.max(-150, Math.min(150, delta)) * (event.ctrlKey ? 0.01 : 0.003)), nsOf(at(event).x));
    }, { passive: false });
    on(canvas, "pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, at(event));
      if (fingers.size === 1) travelled = 0;
    });
    on(canvas, "pointermove", (event) => {
      const here = at(event), before = fingers.get(event.pointerId);
      if (before === undefined) return hover(here);
      const other = [...fingers].find(([pointer]) => pointer !== event.pointerId);
      travelled += Math.abs(here.x - before.x) + Math.abs(here.y - before.y);
      if (other !== undefined) {
        const ns = nsOf((before.x + other[1].x) / 2), wide = (x) => Math.max(20, Math.abs(x - other[1].x));
        zoom(wide(before.x) / wide(here.x), ns);
      } else if (travelled > 4) pan((before.x - here.x) / width);
      fingers.set(event.pointerId, here);
      hover(null);
    });
    on(canvas, "pointerup", (event) => {
      const last = fingers.size === 1 && fingers.has(event.pointerId);
      fingers.delete(event.pointerId);
      if (last && travelled <= 4) choose(hit(at(event).x, at(event).y), false);
    });
    on(canvas, "pointercancel", (event) => fingers.delete(event.pointerId));
    on(canvas, "pointerleave", () => hover(null));
    on(canvas, "dblclick", fit);

    function hover(here) {
      hovered = here === null ? null : hit(here.x, here.y);
      tip.hidden = hovered === null;
      if (hovered !== null) {
        tip.textContent = hovered.gap !== undefined
          ? `${data.parts[data.gap_parts[hovered.gap]][1]}, ${time(data.gaps[hovered.gap])}`
          : `${label(hovered.slice)}, ${time(end[hovered.slice] - start[hovered.slice])}`;
        tip.style.left = `${Math.max(0, Math.min(here.x + 12, width - tip.offsetWidth - 4))}px`;
        tip.style.top = `${here.y + 18}px`;
      }
      redraw();
    }

    function refresh() {
      readColours();
      redraw();
    }
    on(window.matchMedia("(prefers-color-scheme: dark)"), "change", refresh);
    const watcher = new ResizeObserver(() => canvas.clientWidth !== width && canvas.clientWidth > 0 && resize());
    tip.hidden = true;
    readColours();
    makeHeads();
    layOut();
    details(panel, data, model, null);
    watcher.observe(canvas);
    return {
      fit, zoom, pan, select, selectPart, toggle, redraw, refresh,
      view: () => ({ low: view.low, high: view.high }),
      selected: () => selected,
      drawNow: draw,
      destroy: () => (listeners.abort(), watcher.disconnect(), (element.textContent = "")),
    };
  };
})();
