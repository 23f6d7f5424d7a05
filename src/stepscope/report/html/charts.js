"use strict";
// The charts of the report. Each draws from the data block into its own element; names are drawn as text, never as markup.
window.stepscopeCharts = (function () {
  const style = () => getComputedStyle(document.documentElement);
  const colour = (name) => style().getPropertyValue(`--${name}`).trim();
  const shortened = (text, most) => (text.length > most ? text.slice(0, most - 1) + "\u2026" : text);
  const three = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toPrecision(3));
  const isNarrow = (element) => element.clientWidth < 560;

  function powers(value, unit) {
    const steps = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
    const step = steps.find(([size]) => value >= size);
    return step ? `${+(value / step[0]).toPrecision(3)} ${step[1]}${unit}` : `${+value.toPrecision(3)} ${unit}`;
  }

  function basics() {
    const text = { color: colour("ink"), fontFamily: "system-ui, sans-serif" };
    return {
      animation: false,
      backgroundColor: "transparent",
      textStyle: text,
      tooltip: {
        renderMode: "richText", confine: true, backgroundColor: colour("raised"), borderColor: colour("line"), textStyle: { ...text, fontSize: 13 },
      },
    };
  }

  const axis = (more) => ({
    axisLine: { lineStyle: { color: colour("line") } },
    axisLabel: { color: colour("muted") },
    splitLine: { lineStyle: { color: colour("line"), opacity: 0.6 } },
    nameTextStyle: { color: colour("muted") },
    ...more,
  });

  function picture(element, data) {
    const bars = data.bars.slice().reverse();
    const today = data.bars.find((bar) => bar.is_today);
    const series = data.parts.map(({ part, word }) => ({
      name: word, type: "bar", stack: "step", barMaxWidth: 26, itemStyle: { color: colour(`part-${part}`) },
      data: bars.map((bar) => (bar.parts ? bar.parts[part] || 0 : null)),
    }));
    series.push({
      name: "step", type: "bar", stack: "step", barMaxWidth: 26,
      data: bars.map((bar) => (bar.parts ? null : { value: bar.ms, itemStyle: { color: colour(bar.is_today ? "ink" : bar.is_floor ? "muted" : "accent") } })),
      label: { show: true, position: "right", lineHeight: 15, color: colour("ink"), formatter: ({ dataIndex }) => label(bars[dataIndex], today, isNarrow(element)) },
    });
    const narrow = isNarrow(element);
    const top = 12 + 24 * Math.ceil(data.parts.length / (narrow ? 2 : 5));
    element.style.height = `${top + 34 + (narrow ? 58 : 44) * bars.length}px`;
    return {
      ...basics(),
      grid: { left: narrow ? 0 : 12, right: narrow ? 74 : 150, top, bottom: 28, containLabel: true },
      legend: { top: 0, left: 0, type: "plain", itemWidth: 12, itemHeight: 12, textStyle: { color: colour("ink") }, data: data.parts.map((part) => part.word) },
      xAxis: axis({ type: "value", min: 0, splitNumber: narrow ? 2 : 5, axisLabel: { color: colour("muted"), hideOverlap: true, formatter: "{value} ms" } }),
      yAxis: axis({
        type: "category", data: bars.map((bar) => bar.name), axisTick: { show: false },
        axisLabel: { color: colour("ink"), width: narrow ? 118 : 260, overflow: "break", fontSize: narrow ? 11 : 12, lineHeight: 14, interval: 0 },
      }),
      tooltip: { ...basics().tooltip, trigger: "item", formatter: (at) => `${at.seriesName === "step" ? at.name : at.seriesName}: ${three(at.value)} ms` },
      series,
    };
  }

  function label(bar, today, narrow) {
    const gain = today && !bar.is_today ? `  ${(today.ms / bar.ms).toFixed(2)}\u00d7` : "";
    return `${three(bar.ms)} ms${gain}`.replace(narrow ? "  " : "", narrow ? "\n" : "");
  }

  function ranks(element, data) {
    const steps = (data.rows.find((row) => row.word === "step") || { values: [] }).values.filter((value) => value !== null);
    const step = steps.length ? steps.sort((a, b) => a - b)[steps.length >> 1] : 0;
    const cells = data.rows.flatMap((row, y) => {
      const known = row.values.filter((value) => value !== null);
      const low = Math.min(...known), high = Math.max(...known);
      // A row that hardly differs stays pale: its colours would tell of nothing.
      const spread = Math.max(high - low, 0.05 * Math.abs(high), row.unit === "ms" ? 0.02 * step : 0, 1e-9);
      return row.values.map((value, x) => [x, y, value === null ? "-" : (value - low) / spread, value]);
    });
    element.style.height = `${90 + 40 * data.rows.length}px`;
    return {
      ...basics(),
      grid: { left: 8, right: 12, top: 8, bottom: 56, containLabel: true },
      xAxis: axis({ type: "category", data: data.ranks.map((rank) => `${rank}`), name: "rank", nameLocation: "middle", nameGap: 28 }),
      yAxis: axis({ type: "category", inverse: true, data: data.rows.map((row) => `${row.word}, ${row.unit}`), axisLabel: { color: colour("ink") } }),
      visualMap: { show: false, min: 0, max: 1, dimension: 2, inRange: { color: [colour("raised"), colour("part-idle_input"), colour("part-idle_launch")] } },
      tooltip: { ...basics().tooltip, formatter: (at) => `rank ${data.ranks[at.value[0]]}, ${data.rows[at.value[1]].word}: ${at.value[3] === null ? "not measured" : `${three(at.value[3])} ${data.rows[at.value[1]].unit}`}` },
      series: [{
        type: "heatmap", data: cells, itemStyle: { borderColor: colour("paper"), borderWidth: data.ranks.length > 128 ? 0 : 1 },
        label: { show: data.ranks.length <= (isNarrow(element) ? 4 : 12), color: colour("ink"), formatter: ({ value }) => (value[3] === null ? "" : three(value[3])) },
      }],
    };
  }

  function roofline(element, data) {
    const xs = data.points.map((point) => point.x), peaks = Object.entries(data.peaks);
    const top = Math.max(...peaks.map(([, peak]) => peak));
    const [from, to] = [10 ** Math.floor(Math.log10(Math.min(...xs, 0.1))), 10 ** Math.ceil(Math.log10(Math.max(...xs, (2 * top) / data.bandwidth)))];
    const most = Math.max(...data.points.map((point) => point.ms));
    const roofs = peaks.map(([name, peak]) => ({
      name: `${name} roof`, type: "line", symbol: "none", lineStyle: { width: 2 },
      endLabel: { show: false }, data: [[from, from * data.bandwidth], [peak / data.bandwidth, peak], [to, peak]],
    }));
    return {
      ...basics(),
      color: [colour("accent"), colour("part-idle_input"), colour("part-comms_wait"), colour("part-transfer"), colour("part-idle_launch")],
      grid: { left: 8, right: 16, top: 40, bottom: 40, containLabel: true },
      legend: { top: 0, left: 0, textStyle: { color: colour("ink") }, data: roofs.map((roof) => roof.name) },
      xAxis: axis({ type: "log", name: "FLOP a byte", nameLocation: "middle", nameGap: 28, min: from, max: to, axisLabel: { color: colour("muted"), formatter: (value) => `${+value.toPrecision(2)}` } }),
      yAxis: axis({ type: "log", min: 10 ** Math.floor(Math.log10(Math.min(...data.points.map((point) => point.y)))), max: 10 ** Math.ceil(Math.log10(top * 1.2)), axisLabel: { color: colour("muted"), formatter: (value) => powers(value, "FLOP/s") } }),
      tooltip: { ...basics().tooltip, formatter: (at) => (at.data.told ? told(at.data.told) : at.seriesName) },
      series: [...roofs, {
        name: "kernels", type: "scatter", itemStyle: { color: colour("part-compute"), opacity: 0.75 },
        symbolSize: (_, at) => 6 + 22 * Math.sqrt(at.data.told.ms / most),
        data: data.points.map((point) => ({ value: [point.x, point.y], told: point })),
      }],
    };
  }

  const told = (point) => `${shortened(point.name, 60)}\n${point.op ? shortened(point.op, 60) : "not linked to an operator"}\n${three(point.ms)} ms a step, ${powers(point.y, "FLOP/s")}`;

  function links(element, data) {
    const ops = [...new Set(data.points.map((point) => point.op))];
    const series = ops.map((op) => ({
      name: op, type: "scatter", symbolSize: 10, data: data.points.filter((point) => point.op === op).map((point) => ({ value: [point.bytes, point.busbw], told: point })),
    }));
    for (const fit of data.fits) {
      series.push({ name: `${fit.op}, fitted`, type: "line", symbol: "none", smooth: true, lineStyle: { type: "dashed" }, data: fit.line, fit });
    }
    return {
      ...basics(),
      color: [colour("part-comms_transfer"), colour("part-transfer"), colour("part-idle_input"), colour("part-compute"), colour("part-idle_launch")],
      grid: { left: 8, right: 16, top: 40, bottom: 40, containLabel: true },
      legend: { top: 0, left: 0, textStyle: { color: colour("ink") } },
      xAxis: axis({ type: "log", name: "bytes in a message", nameLocation: "middle", nameGap: 28, axisLabel: { color: colour("muted"), formatter: (value) => powers(value, "B") } }),
      yAxis: axis({ type: "log", axisLabel: { color: colour("muted"), formatter: (value) => powers(value, "B/s") } }),
      tooltip: { ...basics().tooltip, formatter: (at) => (at.data.told ? `${at.data.told.op}, ${powers(at.data.told.bytes, "B")}: ${powers(at.data.told.busbw, "B/s")}` : at.seriesName) },
      series,
    };
  }

  function curve(element, data) {
    return {
      ...basics(),
      color: [colour("accent"), colour("part-idle_input"), colour("part-comms_wait"), colour("part-transfer"), colour("part-compute"), colour("part-idle_launch")],
      grid: { left: 8, right: 16, top: 40, bottom: 36, containLabel: true },
      legend: { top: 0, left: 0, type: "scroll", textStyle: { color: colour("ink") } },
      xAxis: axis({ type: "value", name: data.x, nameLocation: "middle", nameGap: 26, min: "dataMin", max: "dataMax", axisLabel: { color: colour("muted"), showMinLabel: false, showMaxLabel: false, formatter: (value) => `${+value.toPrecision(4)}` } }),
      yAxis: axis({ type: "value", min: data.from_zero ? 0 : "dataMin", axisLabel: { color: colour("muted"), formatter: (value) => (data.unit === "B" ? powers(value, "B") : `${+value.toPrecision(4)} ${data.unit}`) } }),
      tooltip: { ...basics().tooltip, trigger: "axis", valueFormatter: (value) => (data.unit === "B" ? powers(value, "B") : `${+value.toPrecision(4)} ${data.unit}`) },
      series: data.lines.map(([name, points]) => ({ name, type: "line", symbol: "none", step: data.steps ? "end" : false, data: points })),
    };
  }

  return { picture, ranks, roofline, links, curve };
})();
