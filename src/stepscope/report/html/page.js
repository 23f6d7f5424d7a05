"use strict";
// What makes the page answer: contents, charts, sorting, searching and copying. The page reads well without any of it.
(function () {
  const data = JSON.parse(document.getElementById("stepscope-data").textContent);
  const charts = window.stepscopeCharts;

  function contents() {
    const list = document.getElementById("contents");
    for (const heading of document.querySelectorAll("main > section > h2")) {
      const link = document.createElement("a");
      link.href = `#${heading.parentElement.id}`;
      link.textContent = heading.textContent.split(",")[0];
      const item = document.createElement("li");
      item.append(link);
      list.append(item);
    }
  }

  const drawn = [];
  function draw(element, option, told) {
    if (!element || !told) return;
    drawn.push({ element, option, told, chart: null });
  }

  function redraw() {
    for (const one of drawn) {
      if (one.chart) one.chart.dispose();
      const option = one.option(one.element, one.told);
      one.chart = window.echarts.init(one.element, null, { renderer: "svg" });
      one.chart.setOption(option);
    }
  }

  function drawAll() {
    const of = (id) => document.getElementById(id);
    draw(of("picture-chart"), charts.picture, data.picture);
    draw(of("rank-chart"), charts.ranks, data.ranks);
    draw(of("roofline-chart"), charts.roofline, data.roofline);
    draw(of("link-chart"), charts.links, data.links);
    for (const element of document.querySelectorAll("[data-curve]")) draw(element, charts.curve, data.curves[element.dataset.curve]);
    redraw();
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
      if (window.innerWidth !== width) { width = window.innerWidth; redraw(); }
    });
    const shown = (values) => window.stepscopeTimeline(of("timeline-box"), values, {});
    let timeline = data.timeline ? shown(data.timeline) : null;
    const choice = of("timeline-choice");
    if (choice) {
      const every = [data.timeline, ...data.timelines];
      every.forEach((values, at) => choice.append(new Option(`rank ${values.rank}, step ${values.step + 1} of ${values.num_steps}${at ? "" : " (median)"}`, at)));
      choice.addEventListener("change", () => { timeline.destroy(); timeline = shown(every[Number(choice.value)]); });
    }
    // On paper the colours are the light ones, and nobody can unfold anything.
    const anew = () => {
      redraw();
      if (timeline) { timeline.refresh(); timeline.drawNow(); }
    };
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", anew);
    window.matchMedia("print").addEventListener("change", anew);
    window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
  }

  const valueOf = (cell) => (cell.dataset.value === undefined ? parseFloat(cell.textContent.replace(/[, ]/g, "")) : Number(cell.dataset.value));

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const press = document.createElement("button");
      press.type = "button";
      press.textContent = head.textContent;
      head.replaceChildren(press);
      press.addEventListener("click", () => {
        const isNumber = head.classList.contains("n");
        const was = head.getAttribute("aria-sort");
        const up = was ? was !== "ascending" : !isNumber;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const compare = isNumber
          ? (a, b) => (valueOf(a.cells[column]) || 0) - (valueOf(b.cells[column]) || 0)
          : (a, b) => a.cells[column].textContent.localeCompare(b.cells[column].textContent);
        const rows = [...table.tBodies[0].rows].sort((a, b) => (up ? compare(a, b) : compare(b, a)));
        table.tBodies[0].append(...rows);
      });
    });
  }

  function searchable(input) {
    const table = document.getElementById(input.dataset.for);
    const count = document.getElementById(`${input.dataset.for}-count`);
    input.closest("label").hidden = false;
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLowerCase();
      let shown = 0;
      for (const row of table.tBodies[0].rows) {
        const text = `${row.textContent} ${row.cells[0].title || ""}`.toLowerCase();
        row.hidden = !text.includes(wanted);
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = wanted ? `${shown} of ${table.tBodies[0].rows.length}` : "";
    });
  }

  function copyable(button) {
    if (!navigator.clipboard) return;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.previousElementSibling.textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  // The picture as a file of its own: its colours are the page's, written into it.
  function savable(button) {
    const picture = button.closest("section").querySelector("svg");
    button.hidden = false;
    button.addEventListener("click", () => {
      const copy = picture.cloneNode(true);
      const copied = copy.querySelectorAll("*");
      picture.querySelectorAll("*").forEach((element, at) => {
        const style = getComputedStyle(element);
        copied[at].removeAttribute("class");
        copied[at].setAttribute("fill", style.fill);
        if (style.stroke !== "none") copied[at].setAttribute("stroke", style.stroke);
      });
      const ground = copy.insertBefore(document.createElementNS(picture.namespaceURI, "rect"), copy.firstChild);
      ground.setAttribute("width", "100%");
      ground.setAttribute("height", "100%");
      ground.setAttribute("fill", getComputedStyle(picture).backgroundColor);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
      link.download = "peak.svg";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }

  contents();
  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll("input[data-for]").forEach(searchable);
  document.querySelectorAll("button.copy").forEach(copyable);
  document.querySelectorAll("button.save-picture").forEach(savable);
  drawAll();
  document.documentElement.dataset.ready = "yes";
})();
