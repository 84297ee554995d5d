"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const SPOKEN_EVERY_MS = 10000;
  const state = { log: [], rounds: [] };
  const used = new Set();
  const byId = (id) => document.getElementById(id);
  let drawn = false, spokenAt = -Infinity, over = false;

  // -- figures for people ------------------------------------------------------------------------------

  const digits = (value) => Number(value.toPrecision(3)).toString();
  const number = (value) => value === null || value === undefined ? "–" : value.toLocaleString("en");
  function duration(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    if (seconds === 0) return "0 s";
    if (seconds < 0.001) return `${digits(seconds * 1e6)} µs`;
    if (seconds < 1) return `${digits(seconds * 1e3)} ms`;
    if (seconds < 120) return `${digits(seconds)} s`;
    if (seconds < 7200) return `${digits(seconds / 60)} min`;
    return `${digits(seconds / 3600)} h`;
  }
  function bytes(size) {
    if (size === null || size === undefined) return "–";
    if (size < 1024) return `${digits(size)} B`;
    const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = -1;
    do { size /= 1024; unit += 1; } while (size >= 1024 && unit < units.length - 1);
    return `${digits(size)} ${units[unit]}`;
  }
  const plain = (value) => typeof value === "number" ? Number(value.toPrecision(5)).toString() : value ?? "–";

  // -- elements; whatever comes from outside is set as text ----------------------------------------------

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }
  // A figure that tests and scripts can read: its exact value stands beside what is shown.
  function figure(tag, name, value, shown, attributes = {}) {
    const exact = value === null || value === undefined ? "" : String(value);
    return element(tag, { ...attributes, "data-figure": name, "data-value": exact }, shown);
  }
  function tile(label, name, value, shown, note) {
    const made = element("div", {}, element("dt", {}, label), figure("dd", name, value, shown));
    if (note) made.append(element("dd", { class: "note" }, note));
    return made;
  }
  // Text that a narrow column may break within the path of a metric, around its tags, and in a long name.
  function breakable(text) {
    const made = element("span");
    for (const part of text.split(/(?<=\.)(?=[a-z])|(?=\{)|(?<=[,_])/)) made.append(part, element("wbr"));
    return made;
  }
  function row(cells) { return element("tr", {}, ...cells); }
  const head = (text, kind = "text") => element("th", { scope: "row", class: kind }, text);
  const cell = (text, kind = "") => element("td", kind ? { class: kind } : {}, text);
  function bars(into, counts, prefix, wrong) {
    const most = Math.max(1, ...Object.values(counts));
    byId(into).replaceChildren(...Object.entries(counts).flatMap(([name, count]) => {
      const part = element("div", wrong.has(name) ? { class: "wrong" } : {});
      part.style.width = `${100 * count / most}%`;
      const none = count ? "" : " none";
      return [
        element("span", { class: `bar-name${none}` }, name),
        element("div", { class: "track", "aria-hidden": "true" }, part),
        figure("span", `${prefix}.${name}`, count, number(count), { class: `bar-total${none}` }),
      ];
    }));
  }

  // -- charts --------------------------------------------------------------------------------------------

  function rounded(most) {
    if (!(most > 0)) return 1;
    const scale = 10 ** Math.floor(Math.log10(most));
    return [1, 2, 2.5, 5, 10].map((step) => step * scale).find((step) => step >= most);
  }
  function roundedBytes(most) {
    const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(most, 1)) / 10));
    return rounded(most / unit) * unit;
  }
  function chart(into, title, lines, format, ceiling) {
    const rounds = state.rounds;
    if (!rounds.length) {
      byId(into).replaceChildren(
        element("figcaption", {}, title), element("p", { class: "intro" }, "No round is over yet."));
      return;
    }
    const known = lines.flatMap(([, key]) => rounds.map((one) => one[key]).filter((value) => value !== null));
    const top = ceiling(Math.max(0, ...known));
    const first = rounds[0].round, last = rounds.at(-1).round;
    const x = (round) => last === first ? 50 : 100 * (round - first) / (last - first);
    const y = (value) => 100 - 100 * value / top;
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 100 100");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    const path = (kind, d) => {
      const made = document.createElementNS(SVG, "path");
      made.setAttribute("class", kind);
      made.setAttribute("d", d);
      svg.append(made);
    };
    path("grid", "M0 50H100M0 0H100");
    lines.forEach(([, key], index) => {
      let d = "", pen = false;
      for (const one of rounds) {
        if (one[key] === null) { pen = false; continue; }
        d += `${pen ? "L" : "M"}${x(one.round).toFixed(2)} ${y(one[key]).toFixed(2)}`;
        pen = true;
      }
      if (!d) return;
      path(`line s${index}${rounds.length === 1 ? " dot" : ""}`, rounds.length === 1 ? `${d}h0` : d);
    });
    const latest = rounds.at(-1);
    const said = `${title}, rounds ${first} to ${last}; in the last: ` +
      lines.map(([name, key]) => `${name} ${format(latest[key])}`).join(", ");
    const legend = element("ul", { class: "legend" }, ...lines.map(([name], index) => {
      const key = document.createElementNS(SVG, "svg");
      key.setAttribute("class", "key");
      key.setAttribute("viewBox", "0 0 24 12");
      key.setAttribute("aria-hidden", "true");
      const line = document.createElementNS(SVG, "path");
      line.setAttribute("class", `line s${index}`);
      line.setAttribute("d", "M0 6H24");
      key.append(line);
      return element("li", {}, key, name);
    }));
    const ticks = [[0, "0"], [50, format(top / 2)], [100, format(top)]];
    const strut = element("span", { class: "strut", "aria-hidden": "true" },
      ...ticks.map(([, text]) => element("i", {}, text)));
    const yTicks = element("div", { class: "y-ticks", "aria-hidden": "true" }, strut, ...ticks.map(([at, text]) => {
      const made = element("span", {}, text);
      made.style.bottom = `${at}%`;
      return made;
    }));
    const area = element("div", { class: "area", role: "img", "aria-label": said }, svg);
    const xTicks = element("div", { class: "x-ticks", "aria-hidden": "true" },
      ...(last === first ? [[50, first]] : [[0, first], [100, last]]).map(([at, text]) => {
        const made = element("span", {}, String(text));
        made.style.left = `${at}%`;
        if (at === 100) made.style.transform = "translateX(-100%)";
        if (at === 0) made.style.transform = "none";
        return made;
      }));
    byId(into).replaceChildren(
      element("figcaption", {}, title), legend,
      element("div", { class: "plot" }, yTicks, area, xTicks,
        element("div", { class: "x-label", "aria-hidden": "true" }, "round")),
    );
  }

  // -- sections ------------------------------------------------------------------------------------------

  const STATUS = {
    preparing: "preparing", baseline: "running the baseline", running: "running", ending: "ending",
    finished: "finished", "no-round-completed": "no round completed", diverged: "diverged", interrupted: "interrupted", failed: "failed",
  };
  function drawRun() {
    const run = state.run;
    const title = run.title || run.name || "Waiting for the run";
    byId("title").textContent = title;
    document.title = `${title} – recfleet dashboard`;
    const facts = [["scenario", run.name], ["seed", run.seed],
      ["clock", { virtual: "virtual: every time is simulated", real: "real: every time is measured" }[run.clock]]];
    byId("facts").replaceChildren(...facts.filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
    const pill = byId("status-word");
    pill.textContent = STATUS[run.status] ?? run.status;
    pill.className = `pill ${run.status}`;
    pill.dataset.status = run.status;
    const notes = [];
    if (run.baseline) notes.push(`round ${run.baseline.round}${run.baseline.rounds ? ` of ${run.baseline.rounds}` : ""} of the run without faults`);
    if (run.status === "ending") notes.push("the devices have gone, and the results are being written");
    if (run.ending) notes.push(run.ending);
    if (run.unscored) notes.push("there is nothing to score, so the model is not evaluated");
    if (run.reason) notes.push(`it ended early: ${run.reason}`);
    else if (run.status === "finished" && run.rounds) notes.push(run.rounds === 1 ? "its round is over" : `all ${number(run.rounds)} rounds are over`);
    if (over) notes.push(run.service ? "the service has closed, and this page stays as it is" : "nothing more will come");
    byId("status-note").textContent = notes.join("; ");
  }
  function drawRound() {
    const { now, totals, run } = state;
    const done = totals.rounds.completed + totals.rounds.abandoned;
    const progress = byId("progress");
    progress.hidden = !run.rounds;
    if (run.rounds) { progress.max = run.rounds; progress.value = done; }
    const latest = state.rounds.at(-1);
    const suspended = Object.values(totals.suspended).reduce((sum, count) => sum + count, 0);
    const of = run.rounds ? ` of ${number(run.rounds)}` : "";
    const time = run.clock === "real" ? "time since the start" : "simulated time";
    const atS = Math.max(now.time_s, totals.end_s);
    byId("tiles").replaceChildren(
      tile("newest round", "now.round", now.round, `${number(now.round)}${of}`, totals.phase && `phase ${totals.phase}`),
      tile("stage", "now.stage", now.stage, now.stage ?? (over ? "–" : "between rounds")),
      tile(time, "time_s", atS, duration(atS)),
      tile("rounds completed", "rounds.completed", totals.rounds.completed, number(totals.rounds.completed),
        totals.rounds.abandoned ? `${number(totals.rounds.abandoned)} abandoned` : ""),
      ...(suspended ? [tile("devices suspended", "suspended", suspended, number(suspended),
        Object.entries(totals.suspended).map(([reason, count]) => `${number(count)} ${reason}`).join(", "))] : []),
      tile("latency, last round", "latency_p50_s", latest?.latency_p50_s, `p50 ${duration(latest?.latency_p50_s)}`,
        `p95 ${duration(latest?.latency_p95_s)}`),
      element("div", {}, element("dt", {}, "frames, this round so far"),
        figure("dd", "now.down_bytes", now.frame_bytes.down, `down ${bytes(now.frame_bytes.down)}`),
        figure("dd", "now.up_bytes", now.frame_bytes.up, `up ${bytes(now.frame_bytes.up)}`),
        element("dd", { class: "note" }, `${number(now.frames.down)} down, ${number(now.frames.up)} up`)),
    );
    // What a protocol has that this run does not use is not shown.
    for (const [name, count] of Object.entries(now.states)) if (count) used.add(name);
    const shown = Object.entries(now.states).filter(([name]) => used.has(name) || !name.startsWith("sent: "));
    bars("states", Object.fromEntries(shown), "state", new Set());
    bars("outcomes", totals.device_rounds, "device_rounds",
      new Set(["late", "dropped", "declined", "failed", "unreachable", "abandoned"]));
  }
  function drawThresholds() {
    byId("thresholds").hidden = !state.thresholds.length;
    byId("threshold-rows").replaceChildren(...state.thresholds.map((one, index) => {
      const [mark, verdict, kind] = one.held === null ? ["·", "not observed yet", ""]
        : one.held ? ["✓", "held", "good"] : ["✗", "missed", "bad"];
      const shown = `${mark} ${verdict}${one.held === null || one.final ? "" : " so far"}`;
      const made = row([
        head(breakable(one.threshold + (one.measured ? " (measured)" : "")), "long"),
        figure("td", `threshold.${index}`, one.held, shown, { class: `text ${kind}` }),
        cell(one.value), cell(one.limit), cell(one.margin),
      ]);
      // As a grid, which it is on a phone, it would be no row of a table to a screen reader.
      made.setAttribute("role", "row");
      for (const part of made.children) part.setAttribute("role", part.tagName === "TH" ? "rowheader" : "cell");
      return made;
    }));
  }
  function drawRounds() {
    chart("latency", "Latency of reports", [["p50", "latency_p50_s"], ["p95", "latency_p95_s"]], duration, rounded);
    chart("bytes", "Bytes sent", [["down", "down_bytes"], ["up", "up_bytes"]], bytes, roundedBytes);
    byId("round-rows").replaceChildren(...state.rounds.slice(-20).reverse().map((one) => row([
      head(number(one.round)), cell(one.outcome + (one.outcome === "abandoned" ? `: ${one.reason}` : ""), "text"),
      cell(number(one.completed)), cell(number(one.invited)), cell(duration(one.duration_s)),
      figure("td", `round.${one.round}.latency_p50_s`, one.latency_p50_s, duration(one.latency_p50_s)),
      figure("td", `round.${one.round}.latency_p95_s`, one.latency_p95_s, duration(one.latency_p95_s)),
      figure("td", `round.${one.round}.down_bytes`, one.down_bytes, bytes(one.down_bytes)),
      figure("td", `round.${one.round}.up_bytes`, one.up_bytes, bytes(one.up_bytes)),
    ])));
  }
  function drawBytes() {
    const { sent_bytes: sent, fate_bytes: fates } = state.totals;
    const kinds = ["all", "payload", "framing", "tcp_ip", "retransmitted"];
    byId("byte-rows").replaceChildren(...["down", "up"].map((way) => row([
      head(way), ...kinds.map((kind) => figure("td", `${way}.${kind}`, sent[way][kind],
        // What is below a WebSocket is not seen from here.
        kind === "tcp_ip" && state.run.clock === "real" ? "not seen" : bytes(sent[way][kind]))),
    ])));
    byId("fates").replaceChildren(...Object.entries(fates).map(
      ([name, size]) => tile(name, `fate.${name}`, size, bytes(size))));
  }
  function drawModel() {
    byId("model").hidden = !state.evaluations.length;
    byId("model-rows").replaceChildren(...state.evaluations.map((one) => row([
      head(`${one.metric} (${one.split}, ${one.population} users)`, "long"), cell(plain(one.first)),
      figure("td", `model.${one.metric}.${one.split}.${one.population}`, one.last, plain(one.last)),
      cell(number(one.round)),
    ])));
  }
  function drawSessions() {
    const sessions = state.sessions;
    byId("sessions").hidden = !sessions;
    if (!sessions) return;
    const refused = Object.values(sessions.refused).reduce((sum, count) => sum + count, 0);
    byId("session-tiles").replaceChildren(
      tile("connected", "sessions.connected", sessions.connected, number(sessions.connected)),
      tile("away", "sessions.away", sessions.away, number(sessions.away), "may come back"),
      tile("begun", "sessions.begun", sessions.begun, number(sessions.begun), sessions.resumed ? `${number(sessions.resumed)} times resumed` : ""),
      tile("connections broken", "sessions.broken", sessions.broken, number(sessions.broken)),
      tile("refused", "sessions.refused", refused, number(refused)),
      tile("messages handled", "sessions.handled", sessions.handled, number(sessions.handled),
        `${duration(sessions.handling_mean_s)} each, here`),
    );
    const reasons = [...Object.entries(sessions.ended).map(([name, count]) => [`ended: ${name}`, count]),
      ...Object.entries(sessions.refused).map(([name, count]) => [`refused: ${name}`, count])];
    byId("session-reasons").replaceChildren(...reasons.map(([name, count]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, number(count)))));
  }
  const KINDS = {
    round: "round", join: "joined", resume: "came back", disconnect: "connection broke", leave: "session over",
    refusal: "refused", suspension: "suspended",
  };
  function drawLog() {
    const total = state.log_total;
    byId("log").hidden = !state.log.length;
    byId("log-note").textContent = !total ? "Nothing has gone wrong so far."
      : total > state.log.length ? `The last ${number(state.log.length)} of ${number(total)} entries, the newest first.`
      : `${number(total)} ${total === 1 ? "entry" : "entries"}, the newest first.`;
    byId("log-note").dataset.value = total;
    byId("log-rows").replaceChildren(...state.log.toReversed().map((one) => row([
      cell(number(one.round), "text"), cell(one.device === null ? "–" : String(one.device), "text"),
      cell(breakable(one.kind === "drop" ? one.note : [KINDS[one.kind] ?? one.kind, one.note].filter(Boolean).join(", ")), "text"),
      cell(breakable(one.reason + (one.stage ? `, at ${one.stage}` : "")), "text"),
    ])));
  }
  function speak() {
    const now = performance.now();
    if (!over && now - spokenAt < SPOKEN_EVERY_MS) return;
    spokenAt = now;
    const missed = state.thresholds.filter((one) => one.held === false).length;
    const { totals, run } = state;
    byId("spoken").textContent =
      `${STATUS[run.status] ?? run.status}; ${totals.rounds.completed} rounds completed` +
      `${totals.rounds.abandoned ? `, ${totals.rounds.abandoned} abandoned` : ""}; ` +
      `${totals.device_rounds.dropped} device rounds dropped; ${missed} of ${state.thresholds.length} thresholds missed`;
  }

  // -- events --------------------------------------------------------------------------------------------

  const waiting = new Set();
  function draw() {
    drawn = false;
    const has = (...names) => names.some((name) => waiting.has(name));
    if (has("run")) drawRun();
    if (has("run", "now", "totals", "rounds")) drawRound();
    if (has("thresholds")) drawThresholds();
    if (has("rounds", "state")) drawRounds();
    if (has("totals")) drawBytes();
    if (has("evaluations")) drawModel();
    if (has("sessions")) drawSessions();
    if (has("log", "state")) drawLog();
    waiting.clear();
    speak();
    document.body.dataset.version = state.version;
    document.body.dataset.over = over;
  }
  function take(found, whole) {
    for (const name of ["run", "now", "totals", "evaluations", "thresholds", "sessions", "version", "log_total"]) {
      if (name in found) { state[name] = found[name]; waiting.add(name); }
    }
    for (const name of ["log", "rounds"]) {
      if (whole) state[name] = found[name];
      else if (found[name]?.length) state[name] = [...state[name], ...found[name]].slice(-found.kept[name]);
      else continue;
      waiting.add(name);
    }
    if (whole) waiting.add("state");
    if (drawn) return;
    drawn = true;
    // A page in the background is not drawn; what it missed is drawn once it is looked at.
    requestAnimationFrame(draw);
  }
  const source = new EventSource("/dashboard/events");
  source.addEventListener("open", () => { byId("lost").hidden = true; });
  source.addEventListener("state", (event) => take(JSON.parse(event.data), true));
  source.addEventListener("change", (event) => take(JSON.parse(event.data), false));
  source.addEventListener("over", () => { over = true; source.close(); take({ run: state.run }, false); });
  source.addEventListener("error", () => {
    if (over) return;
    byId("lost").textContent = source.readyState === EventSource.CLOSED
      ? "The connection is lost. What is shown is how things were then; reload the page to try again."
      : "The connection is lost; trying again. What is shown is how things were then.";
    byId("lost").hidden = false;
  });
})();
