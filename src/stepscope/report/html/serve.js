"use strict";
// A running job: its frame is drawn by the server, and fetched again every two seconds until the job has ended, with what the pictures show.
(() => {
  const frame = document.getElementById("frame");
  const state = document.getElementById("state");
  const pictures = document.getElementById("pictures");
  if (!frame) return;
  let series = null;

  const drawAll = () => {
    if (series === null) return;
    const lines = (values, what) => values.map((each, at) => ({ name: `${what}rank ${series.ranks[at]}`, values: each }));
    const parts = series.parts.map((each) => ({ name: each.word, part: each.part, values: each.ms }));
    const loss = series.loss.some((each) => each.length) ? lines(series.loss, "") : [];
    const given = { steps: lines(series.steps, ""), parts, memory: lines(series.memory, `${series.memory_of}, `), loss };
    const all = Object.values(given).flat().map((line) => line.values).filter((values) => values.length);
    const longest = Math.max(1, ...all.map((values) => values.length));
    const first = Math.min(longest - 1, ...all.map((values) => values.findIndex((value) => value !== null)));
    const left = series.num_left_out ? `, the first ${series.ranks.length} of ${series.ranks.length + series.num_left_out}` : "";
    document.getElementById("ranks").textContent = series.ranks.length === 1
      ? "Point at a picture, or take the arrow keys, to read it."
      : `A line for each of ${series.ranks.length} ranks${left}. Point at one, or take the arrow keys, to see which it is.`;
    pictures.hidden = series.ranks.length === 0;
    for (const [name, drawn] of Object.entries(given)) {
      window.stepscopePictures.draw(document.getElementById(`picture-${name}`), {
        lines: drawn, isStacked: name === "parts", isFromZero: name !== "loss", stretch_s: series.stretch_s,
        begin_s: first * series.stretch_s, end_s: longest * series.stretch_s, alerts: series.alerts,
      });
    }
  };

  const lookAtSeries = async () => {
    const answer = await fetch(pictures.dataset.source, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    series = await answer.json();
    drawAll();
  };

  const look = async () => {
    let wait = 2000;
    try {
      const answer = await fetch(frame.dataset.source, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      // The server's own words, escaped by it; no script in them could run under this page's policy.
      const text = await answer.text();
      if (text !== frame.innerHTML) frame.innerHTML = text;
      await lookAtSeries();
      if (answer.headers.get("X-Stepscope-Ended") === "yes") {
        state.textContent = "The job has ended.";
        return;
      }
      state.textContent = "Drawn anew every two seconds.";
    } catch {
      state.textContent = "The server does not answer; trying again.";
      wait = 5000;
    }
    setTimeout(look, wait);
  };
  new ResizeObserver(drawAll).observe(pictures);
  if (frame.dataset.ended === "yes") lookAtSeries().catch(() => {});
  else look();
})();
