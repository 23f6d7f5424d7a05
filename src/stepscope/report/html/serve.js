"use strict";
// A running job: its frame is drawn by the server, and fetched again every two seconds until the job has ended.
(() => {
  const frame = document.getElementById("frame");
  const state = document.getElementById("state");
  if (!frame) return;
  const look = async () => {
    let wait = 2000;
    try {
      const answer = await fetch(frame.dataset.source, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      // The server's own words, escaped by it; no script in them could run under this page's policy.
      frame.innerHTML = await answer.text();
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
  setTimeout(look, 2000);
})();
