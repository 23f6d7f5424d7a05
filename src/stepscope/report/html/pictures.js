"use strict";
// Pictures of a run over its time: lines, a rank each, or areas on top of one another. Pointing at one, or the arrow keys, say what a line is and
// how high it stands.
window.stepscopePictures = (function () {
  const SVG = "http://www.w3.org/2000/svg";
  const LEFT = 44, RIGHT = 8, TOP = 8, BOTTOM = 20;
  const made = (name, attributes, text) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const three = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : +value.toPrecision(3)).toString();
  // In the unit that suits the whole axis.
  const time = (seconds, end) => {
    const [size, word] = end < 120 ? [1, "s"] : end < 7200 ? [60, "min"] : [3600, "h"];
    return `${three(seconds / size)} ${word}`;
  };
  const unitOf = (end) => (end < 120 ? 1 : end < 7200 ? 60 : 3600);
  const measured = (line) => line.reduce((points, value, at) => (value === null ? points : [...points, [at, value]]), []);

  // Round steps of an axis, five or so.
  function ticks(low, high, num) {
    const rough = (high - low) / num || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const first = Math.ceil(low / step) * step;
    return Array.from({ length: Math.floor((high - first) / step + 1e-9) + 1 }, (_, at) => first + at * step);
  }

  // What is drawn: {lines: [{name, values, part}], stretch_s, begin_s, end_s, alerts, isStacked, isFromZero}.
  function draw(figure, given) {
    const svg = figure.querySelector("svg"), said = figure.querySelector(".value");
    const lines = given.lines.filter((line) => line.values.some((value) => value !== null));
    figure.hidden = lines.length === 0;
    if (figure.hidden) return;
    const unit = figure.dataset.unit, width = svg.clientWidth || 640, height = svg.clientHeight || 200;
    const stacks = given.isStacked ? stacked(lines) : lines.map((line) => line.values);
    const all = stacks.flat().filter((value) => value !== null);
    const top = Math.max(...all), least = Math.min(...all);
    const low = given.isFromZero || top === least ? Math.min(0, least) : least;
    const high = top === low ? low + 1 : top + 0.05 * (top - low);
    const begin = given.begin_s, end = given.end_s;
    const x = (seconds) => LEFT + (width - LEFT - RIGHT) * Math.max(0, Math.min(1, (seconds - begin) / (end - begin)));
    const y = (value) => height - BOTTOM - (height - TOP - BOTTOM) * (value - low) / (high - low);
    const at = (index) => x((index + 0.5) * given.stretch_s);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const parts = [];
    for (const value of ticks(low, high, 4)) {
      parts.push(made("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
      parts.push(made("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, three(value)));
    }
    for (const count of ticks(begin / unitOf(end), end / unitOf(end), width < 480 ? 3 : 6)) {
      const seconds = count * unitOf(end), isLate = x(seconds) > width - 40;
      parts.push(made("text", { class: "tick", x: x(seconds), y: height - 4, "text-anchor": isLate ? "end" : "middle" }, time(seconds, end)));
    }
    for (const alert of given.alerts) {
      const from = x(alert.from_s), to = alert.to_s === null ? width - RIGHT : x(alert.to_s);
      const band = made("rect", { class: "alert", x: from, y: TOP, width: Math.max(2, to - from), height: height - TOP - BOTTOM });
      band.append(made("title", {}, `${alert.kind}: ${alert.words}`));
      parts.push(band);
    }
    const drawn = lines.map((line, number) => {
      const points = measured(stacks[number]);
      if (!given.isStacked) {
        const path = made("path", { class: "line", d: points.map(([index, value], num) => `${num ? "L" : "M"}${at(index).toFixed(1)} ${y(value).toFixed(1)}`).join("") });
        if (points.length === 1) path.setAttribute("d", `${path.getAttribute("d")}h1`);
        return path;
      }
      const below = number ? stacks[number - 1] : null;
      const down = points.map(([index]) => [index, below ? below[index] : low]).reverse();
      const d = [...points, ...down].map(([index, value], num) => `${num ? "L" : "M"}${at(index).toFixed(1)} ${y(value).toFixed(1)}`).join("");
      return made("path", { class: `area area-${line.part}`, d: `${d}Z` });
    });
    const many = lines.length > 8;
    for (const path of drawn) if (many) path.classList.add("many");
    const cursor = made("line", { class: "cursor", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
    svg.replaceChildren(...parts, ...drawn, cursor);
    figure.querySelector(".legend").replaceChildren(...(given.isStacked ? lines.map(legend) : []));

    const last = Math.max(...stacks.map((values) => values.length)) - 1;
    const show = (index, number) => {
      const line = lines[number], value = line.values[index];
      drawn.forEach((path, other) => path.classList.toggle("chosen", other === number && lines.length > 1));
      cursor.setAttribute("visibility", "visible");
      cursor.setAttribute("x1", at(index));
      cursor.setAttribute("x2", at(index));
      const alert = given.alerts.find((each) => at(index) >= x(each.from_s) - 3 && at(index) <= (each.to_s === null ? width : x(each.to_s) + 3));
      said.textContent = `${line.name}: ${value === null ? "not measured" : `${three(value)} ${unit}`} at ${time((index + 0.5) * given.stretch_s, end)}${alert ? `; ${alert.kind}: ${alert.words}` : ""}`;
      figure.at = { index, number };
    };
    const hide = () => {
      figure.at = undefined;
      cursor.setAttribute("visibility", "hidden");
      drawn.forEach((path) => path.classList.remove("chosen"));
      said.textContent = summary(lines, unit, given);
    };
    const near = (number, index) => nearest(stacks[number], index);
    svg.onpointermove = (event) => {
      const box = svg.getBoundingClientRect();
      const px = (event.clientX - box.left) * width / box.width, py = (event.clientY - box.top) * height / box.height;
      const wanted = Math.max(0, Math.min(last, Math.round((begin + (px - LEFT) / (width - LEFT - RIGHT) * (end - begin)) / given.stretch_s - 0.5)));
      let best = null;
      stacks.forEach((values, number) => {
        const index = near(number, wanted);
        const off = given.isStacked ? y(values[index]) - py : Math.abs(y(values[index]) - py);
        const isBetter = given.isStacked ? off <= 0 && (best === null || off > best.off) : best === null || off < best.off;
        if (isBetter) best = { off, number, index };
      });
      // Above all areas: the uppermost.
      if (best === null) best = { number: stacks.length - 1, index: near(stacks.length - 1, wanted) };
      show(best.index, best.number);
    };
    svg.onpointerleave = hide;
    svg.onblur = hide;
    svg.onkeydown = (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      const now = figure.at || { index: last, number: 0 };
      const number = Math.max(0, Math.min(lines.length - 1, now.number + step[1]));
      show(along(stacks[number], now.index, step[0]), number);
    };
    if (figure.at && figure.at.number < lines.length && figure.at.index <= last) show(figure.at.index, figure.at.number);
    else hide();
  }

  function stacked(lines) {
    const length = Math.max(...lines.map((line) => line.values.length));
    const sums = new Array(length).fill(0);
    return lines.map((line) => sums.map((sum, at) => {
      const value = at < line.values.length ? line.values[at] : null;
      if (lines.every((each) => at >= each.values.length || each.values[at] === null)) return null;
      sums[at] = sum + (value || 0);
      return sums[at];
    }));
  }

  // The measured value that lies next to an index.
  function nearest(values, index) {
    for (let off = 0; off <= values.length + index; off += 1) {
      if (values[index - off] !== undefined && values[index - off] !== null) return index - off;
      if (values[index + off] !== undefined && values[index + off] !== null) return index + off;
    }
    return 0;
  }

  function along(values, index, step) {
    let next = nearest(values, index);
    if (step === 0) return next;
    for (let at = next + step; at >= 0 && at < values.length; at += step) if (values[at] !== null) return at;
    return next;
  }

  function summary(lines, unit, given) {
    const lasts = lines.map((line) => line.values.filter((value) => value !== null).pop());
    if (given.isStacked) return `${three(lasts.reduce((sum, value) => sum + value, 0))} ${unit} just now`;
    const least = Math.min(...lasts), most = Math.max(...lasts);
    const between = three(least) === three(most) ? three(most) : `${three(least)} to ${three(most)}`;
    return `${between} ${unit} just now`.replace("  ", " ");
  }

  function legend(line) {
    const item = document.createElement("li"), swatch = document.createElement("span");
    swatch.className = `swatch swatch-${line.part}`;
    item.append(swatch, line.name);
    return item;
  }

  return { draw };
})();
