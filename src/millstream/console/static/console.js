// What a page gains by a script: it stays up to date, its charts can be read, and files can be dropped on a form.
// Without it every page is whole as it came.
(() => {
  "use strict";
  const state = document.getElementById("live-state");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const charts = [];
  const states = ["ready", "leased", "delayed", "dead"];
  // Where the node was down there are no samples: a line across would claim that there were.
  const GAP = 150e6;
  const parts = { rate: ["messages"], tasks: ["open_tasks", "dead_tasks"], queue: states };
  // A sentence says more than a line at zero, unless the node was down in between: nothing is known about that time.
  const isIdle = (kind, samples) => samples.every((s, n) => (!n || s.at - samples[n - 1].at <= GAP)
    && parts[kind].every((name) => (kind === "rate" ? s[name] === samples[0][name] : !s[name])));
  const torn = (samples) => samples.flatMap((s, n) => (n && s.at - samples[n - 1].at > GAP ? [{ at: s.at - 1e6, down: true }, s] : [s]));
  const shown = (taken, kind) => {
    const samples = torn(taken);
    const times = samples.map((s) => s.at / 1e6);
    if (kind === "rate") {
      const rates = samples.map((s, n) => {
        const before = samples[n - 1];
        if (n === 0 || s.down || before.down) return null;
        return Math.max(0, (s.messages - before.messages) / Math.max((s.at - before.at) / 1e6, 0.001));
      });
      return [times, rates];
    }
    if (kind === "queue") return [times, ...states.map((name) => samples.map((s) => s[name] ?? null))];
    return [times, samples.map((s) => s.open_tasks ?? null), samples.map((s) => s.dead_tasks ?? null)];
  };
  const at = (u, v) => (v === null || v === undefined ? "–" : clock(v, 8));
  const series = (kind) =>
    kind === "rate"
      ? [{ label: "time (UTC)", value: at }, { label: "messages per second", value: (u, v) => (v === null || v === undefined ? "–" : v.toFixed(1)), stroke: colour("--line"), width: 1.5, fill: colour("--accent-soft") + "66", points: { show: false } }]
      : kind === "queue"
      ? [{ label: "time (UTC)", value: at }, ...states.map((name, n) => ({ label: name === "leased" ? "in progress" : name, stroke: colour(`--series${n + 1}`), width: 1.5, dash: [[], [6, 3], [2, 3], []][n], points: { show: false } }))]
      : [
          { label: "time (UTC)", value: at },
          { label: "open", stroke: colour("--line"), width: 1.5, points: { show: false } },
          { label: "dead", stroke: colour("--line2"), width: 1.5, points: { show: false } },
        ];
  const clock = (seconds, digits) => new Date(seconds * 1000).toISOString().slice(11, 11 + digits);
  // Without a cursor the legend shows the last sample.
  const latest = (u) => { if (u.cursor.idx === null || u.cursor.idx === undefined) u.setLegend({ idx: u.data[0].length - 1 }, false); };
  const idle = (u) => u.data.slice(1).every((values) => values.every((v) => !v));
  const brief = (v) => (v >= 1e6 ? v / 1e6 + " M" : v >= 1e4 ? v / 1e3 + " k" : String(v));
  // Whole seconds to whole days, so that no label is there twice; the top of a chart is a round number, which is named.
  const STEPS = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400];
  const topOf = (high) => {
    const power = 10 ** Math.floor(Math.log10(Math.max(high, 1) / 2));
    const step = [1, 2, 5, 10].map((n) => n * power).find((each) => each * 2 >= high) ?? high;
    return Math.max(1, step * 2);
  };
  const draw = (box, samples) => {
    if (samples.length < 2 || !window.uPlot) return null;
    const kind = box.dataset.chart;
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    box.replaceChildren();
    if (isIdle(kind, samples)) {
      const text = document.createElement("p");
      text.className = "nothing";
      text.textContent = `${box.dataset.idle} since ${new Date(samples[0].at / 1000).toISOString().slice(0, 19).replace("T", " ")} UTC.`;
      box.append(text);
      return null;
    }
    return new uPlot(
      {
        width: box.clientWidth, height: 150, tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "Etc/UTC"),
        scales: { y: { range: (u, low, high) => [0, topOf(high)] } },
        axes: [{ ...axis, space: 80, incrs: STEPS, values: (u, ticks) => ticks.map((t) => clock(t, ticks.length > 1 && ticks[1] - ticks[0] < 60 ? 8 : 5)) }, { ...axis, size: 46, values: (u, ticks) => ticks.map((v) => (idle(u) && v ? "" : kind !== "rate" && v % 1 ? "" : brief(v))) }],
        series: series(kind), cursor: { points: { size: 6 } }, legend: { live: true }, hooks: { ready: [latest], setData: [latest], setCursor: [latest] },
      },
      shown(samples, kind), box,
    );
  };
  for (const box of document.querySelectorAll("[data-chart]")) {
    const chart = { box, samples: [], plot: null };
    charts.push(chart);
    fetch(box.dataset.source).then((r) => (r.ok ? r.json() : { items: [] })).then((found) => {
      chart.samples = found.items;
      chart.plot = draw(box, chart.samples);
    }).catch(() => {});
  }
  const redraw = (chart) => {
    if (chart.plot && !isIdle(chart.box.dataset.chart, chart.samples)) { chart.plot.setData(shown(chart.samples, chart.box.dataset.chart)); return; }
    if (chart.plot) chart.plot.destroy();
    chart.plot = draw(chart.box, chart.samples);
  };
  const add = (sample) => {
    for (const chart of charts) {
      if (chart.box.dataset.follow) { follow(chart); continue; }
      const last = chart.samples[chart.samples.length - 1];
      if (last && last.at >= sample.at) continue;
      chart.samples.push(sample);
      if (chart.samples.length > 900) chart.samples.shift();
      redraw(chart);
    }
  };
  // The chart of one queue asks for what is new of it when the server says that it has looked.
  const follow = (chart) => {
    if (chart.box.dataset.follow !== "yes" || chart.asking || document.hidden) return;
    chart.asking = true;
    const last = chart.samples[chart.samples.length - 1];
    fetch(`${chart.box.dataset.source}?since=${last ? last.at : 0}`).then((r) => (r.ok ? r.json() : { items: [] })).then((found) => {
      chart.samples = chart.samples.concat(found.items).slice(-900);
      redraw(chart);
    }).catch(() => {}).finally(() => { chart.asking = false; });
  };
  // A page without a chosen theme follows the system, and so do its charts, which keep the colours that they were drawn in.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const chart of charts) if (chart.plot) { chart.plot.destroy(); chart.plot = draw(chart.box, chart.samples); }
  });
  addEventListener("resize", () => {
    for (const { plot, box } of charts) if (plot) plot.setSize({ width: box.clientWidth, height: 150 });
  });

  // The server tells of what changed; it is asked again by itself after a break.
  const steps = document.querySelector("[data-live=steps]");
  const verdict = document.querySelector("[data-live=verdict]");
  const live = document.getElementById("live");
  if ((steps || live || charts.length) && window.EventSource) {
    const events = new EventSource(steps ? "/events?steps=1" : "/events");
    events.onopen = () => { state.hidden = false; state.classList.remove("lost"); state.textContent = "live"; };
    events.onerror = () => { state.hidden = false; state.classList.add("lost"); state.textContent = "the server does not answer; retrying"; };
    events.addEventListener("sample", (event) => add(JSON.parse(event.data)));
    events.addEventListener("changed", () => {
      if (!document.hidden && live && !live.contains(document.activeElement)) htmx.trigger(document.body, "changed");
    });
    events.addEventListener("steps", (event) => {
      if (!document.hidden && !steps.contains(document.activeElement)) steps.innerHTML = event.data;
    });
    events.addEventListener("verdict", (event) => {
      if (verdict.dataset.shown !== event.data && !verdict.contains(document.activeElement)) {
        verdict.innerHTML = verdict.dataset.shown = event.data;
      }
    });
    addEventListener("pagehide", () => events.close());
  }

  // A table that does not fit becomes a list of cards.
  const fit = () => {
    for (const table of document.querySelectorAll("main table")) {
      const box = table.closest(".card");
      if (!box || !table.tHead) continue;
      table.classList.remove("cards");
      const style = getComputedStyle(box);
      const fits = table.scrollWidth <= box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) + 1;
      if (!fits) table.classList.add("cards");
    }
  };
  fit();
  addEventListener("resize", fit);
  new MutationObserver((changes) => {
    const isTable = (node) => node.nodeType === 1 && (node.matches("table, tr") || node.querySelector("table"));
    if (changes.some((change) => [...change.addedNodes].some(isTable))) fit();
  }).observe(document.getElementById("main"), { childList: true, subtree: true });

  // A search continues by itself until it is stopped; the link to continue stays.
  const stop = document.querySelector("[data-stop]");
  if (stop) {
    const running = () => document.querySelector(".go-on[hx-get]");
    let stopped = false;
    stop.hidden = !running();
    stop.addEventListener("click", () => {
      stopped = stop.hidden = true;
      const step = running();
      if (step) htmx.trigger(step, "htmx:abort");
    });
    document.body.addEventListener("htmx:beforeRequest", (event) => {
      if (stopped && event.target.matches(".go-on")) event.preventDefault();
    });
    document.body.addEventListener("htmx:afterSettle", () => { if (!running()) stop.hidden = true; });
  }

  for (const button of document.querySelectorAll("[data-copy]")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", () => {
      navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent)
        .then(() => { button.textContent = "Copied"; }, () => { button.textContent = "Select the text and copy it"; });
    });
  }

  // A proof may be dropped on its field.
  for (const field of document.querySelectorAll("[data-drop]")) {
    field.addEventListener("dragover", (event) => event.preventDefault());
    field.addEventListener("drop", (event) => {
      const file = event.dataTransfer.files[0];
      if (!file) return;
      event.preventDefault();
      file.text().then((text) => { field.value = text; });
    });
  }

  // "/" leads to the search field, as people expect.
  addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      document.getElementById("find").focus();
    }
  });
})();
