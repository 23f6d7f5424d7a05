/* What stands around the timeline's canvas: legend, details of the selected slice, the longest slices as a table. */
"use strict";

(function () {
  const { KIND_WORDS, time, bytes, amount } = window.stepscopeTimelineParts;
  const NUM_LONGEST = 12;

  function make(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }
  function button(className, text, onClick) {
    const made = make("button", className, text);
    made.type = "button";
    made.addEventListener("click", onClick);
    return made;
  }
  function named(control, label) {
    control.setAttribute("aria-label", label);
    return control;
  }

  function legend(data, selectPart) {
    const parts = make("ul", "t-keys"), spent = data.parts.map(() => 0);
    named(parts, data.where === "device" ? "What the device did or waited for" : "What the host did");
    data.gaps.forEach((dur, k) => (spent[data.gap_parts[k]] += dur));
    data.parts.forEach(([part, words], p) => {
      if (!spent[p]) return;
      const entry = make("li"), go = button("t-key", "", () => selectPart(p));
      go.append(swatch(`part-${part}`), make("span", "", words), make("span", "t-muted", time(spent[p])));
      go.title = "Show the longest";
      entry.append(go);
      parts.append(entry);
    });
    return parts;
  }
  function kinds(model) {
    const list = named(make("ul", "t-keys t-kinds"), "Colours of slices"), seen = new Set(model.hues);
    const of = (hue, words) => seen.has(hue) && list.append(key(hue, words));
    Object.entries(KIND_WORDS).forEach(([kind, words]) => of(kind, words));
    model.categories.forEach((name, k) => of(`hue-${k}`, `${name} kernels`));
    of("mixed", "other or mixed");
    return list;
  }
  function key(hue, words) {
    const entry = make("li", "t-kind");
    entry.append(swatch(hue), make("span", "", words));
    return entry;
  }
  function swatch(name) {
    const made = make("span", "t-swatch");
    made.style.background = `var(--t-${name})`;
    return made;
  }

  function leftOut(data) {
    const said = [], ahead = data.window[0], lasts = data.window[1] - data.window[0];
    if (ahead > 0.02 * lasts) said.push(`The host launched some of this work before the step began: pan left for the ${time(ahead)} before it.`);
    if (data.num_left_out) {
      said.push(
        `${amount(data.num_left_out)} of ${amount(data.num_events)} events are too small to draw one by one: ` +
          "neighbours are joined into blocks, which keep their time.",
      );
    }
    if (data.num_lanes_left_out) said.push(`${amount(data.num_lanes_left_out)} tracks with the least time are not shown.`);
    if (data.gap_moved_ns) said.push(`In the row of the step, pieces stand up to ${time(data.gap_moved_ns)} from their place.`);
    if (data.num_frames) said.push(`${amount(data.num_frames)} Python frames are not drawn.`);
    return make("p", "t-help", said.join(" "));
  }

  function longest(data, model, select) {
    const fold = make("details", "t-longest"), box = make("div", "t-scroll"), table = make("table");
    const head = make("tr"), body = make("tbody"), top = make("thead");
    ["Slice", "Lane", "Starts", "Lasts"].forEach((word) => {
      const cell = make("th", "", word);
      cell.scope = "col";
      head.append(cell);
    });
    const all = Array.from({ length: model.n }, (_, i) => i).filter((i) => model.end[i] > data.window[0]);
    all.sort((a, b) => model.busy[b] - model.busy[a]);
    const some = (kinds) => all.filter((i) => kinds.includes(model.laneOf[model.row[i]].kind)).slice(0, NUM_LONGEST);
    for (const i of [...some(["stream", "collectives"]), ...some(["host"])]) {
      const line = make("tr"), cell = make("td");
      cell.append(button("t-link", model.label(i), () => select(i, true)));
      const start = model.start[i] - data.window[0], when = start < 0 ? "before" : time(start);
      const texts = [model.laneOf[model.row[i]].label, when, time(model.end[i] - model.start[i])];
      line.append(cell, ...texts.map((text) => make("td", "", text)));
      body.append(line);
    }
    top.append(head);
    table.append(top, body);
    box.append(table);
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "The longest slices");
    fold.append(make("summary", "", "The longest slices, as a table"), box);
    return fold;
  }

  function facts(data, model, one) {
    const from = data.window[0], rank = ["Rank", String(data.rank)];
    const into = (ns) => ["Starts", ns < from ? `${time(from - ns)} before the step` : `${time(ns - from)} into the step`];
    if (one.gap !== undefined) {
      const part = data.parts[data.gap_parts[one.gap]][1];
      return [["Part", part], ["Lasts", time(data.gaps[one.gap])], into(model.gapStart[one.gap]), rank];
    }
    const i = one.slice, what = model.whats[model.what[i]], many = model.count[i];
    const call = model.launch[i], kernels = model.launched.get(i);
    const rows = [["Name", what.name || model.label(i)]];
    if (many > 1) rows.push(["Stands for", `${amount(many)} small slices, together ${time(model.busy[i])}`]);
    rows.push(["Lasts", time(model.end[i] - model.start[i])], into(model.start[i]));
    rows.push(["Kind", [what.kind, what.category, what.phase].filter(Boolean).join(", ")]);
    rows.push(["Launched by", what.op], ["Module", what.module], ["Line", what.line]);
    if (model.size.has(i)) rows.push(["Size", bytes(model.size.get(i))]);
    if (call >= 0) rows.push(["Launch", `${model.label(call)}, ${time(model.start[i] - model.start[call])} before it began`]);
    if (kernels) rows.push(["Launches", kernels.length > 1 ? `${amount(kernels.length)} slices` : model.label(kernels[0])]);
    rows.push(["Track", model.laneOf[model.row[i]].label], rank);
    return rows.filter(([, value]) => value);
  }

  function details(panel, data, model, selected, go) {
    panel.textContent = "";
    if (selected === null) {
      panel.append(make("p", "t-muted", "Nothing is selected: click a slice, or press the down arrow on the timeline."));
      return;
    }
    const list = make("dl");
    facts(data, model, selected).forEach(([term, value]) => {
      const pair = make("div");
      pair.append(make("dt", "", term), make("dd", "", value));
      list.append(pair);
    });
    panel.append(list);
    const other = selected.gap === undefined ? model.counterpart(selected.slice) : undefined;
    if (other !== undefined) {
      const words = model.launch[selected.slice] >= 0 ? "Go to its launch" : "Go to its kernel";
      panel.append(button("t-button", words, () => go(other)));
    }
  }

  Object.assign(window.stepscopeTimelineParts, { legend, kinds, leftOut, longest, details, make, button, named });
})();
