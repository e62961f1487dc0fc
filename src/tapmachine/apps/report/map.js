// The map of solutions, with a slider over epochs. Hovering over a solution shows it; a click pins it.

function startMap(run) {
  const { data } = run, map = run.part("map"), solutions = run.part("solutions"), points = run.part("points");
  const slider = run.part("epoch"), play = run.part("play"), pinned = run.part("pinned"), color = run.part("color");
  const NEAR = 24; // maximum distance in pixels
  let timer = null, zoom = 1;
  const x = (place) => place[0], y = (place) => 750 - 0.75 * place[1];

  function circleAt(place, radius) {
    const circle = document.createElementNS(SVG, "circle");
    circle.setAttribute("r", radius);
    circle.style.transform = `translate(${x(place)}px, ${y(place)}px)`;
    return circle;
  }

  function draw() {
    const epoch = run.epoch(), before = data.epochs[run.before ?? run.position], forward = run.position === run.before + 1;
    // Small circles are drawn last, on top of large circles.
    const order = epoch.place.map((_, i) => i).sort((a, b) => epoch.probability[b] - epoch.probability[a]);
    solutions.replaceChildren(...order.map((place) => {
      const from = forward && epoch.from[place] >= 0 ? before.place[epoch.from[place]] : epoch.place[place];
      const circle = circleAt(from, (7 + 28 * Math.sqrt(epoch.probability[place])) / Math.sqrt(zoom));
      circle.dataset.place = place;
      circle.style.fill = colorOf(run, epoch, place);
      return circle;
    }));
    if (!forward) return;
    void solutions.getBoundingClientRect(); // forces a layout at the initial positions, so that the transition is animated
    for (const circle of solutions.children) {
      const place = epoch.place[circle.dataset.place];
      circle.style.transform = `translate(${x(place)}px, ${y(place)}px)`;
    }
  }

  function paint() {
    const epoch = run.epoch(), byLabel = run.colorBy === "label" && data.labels;
    for (const circle of solutions.children) circle.style.fill = colorOf(run, epoch, circle.dataset.place);
    [...points.children].forEach((circle, i) => {
      circle.style.fill = byLabel ? data.labels.colors[data.labels.of[i]] : "";
      circle.style.fillOpacity = byLabel ? 0.45 : 1;
    });
    if (data.labels) run.part("label-legend").hidden = !byLabel;
    run.part("energy-legend").hidden = Boolean(byLabel);
  }

  function describe() {
    const epoch = run.epoch(), lowest = Math.min(...epoch.free_energy), highest = Math.max(...epoch.free_energy);
    const some = epoch.total === epoch.number.length ? "" : ` (${epoch.number.length} shown)`;
    const range = epoch.number.length ? `; F from ${lowest.toFixed(1)} to ${highest.toFixed(1)}` : "";
    const words = `${epoch.epoch}: ${plural(epoch.total, "solution")}${some}${range}`;
    run.part("which").textContent = words;
    slider.setAttribute("aria-valuetext", words);
    const findings = run.part("findings");
    findings.querySelector("span").textContent = epoch.epoch;
    findings.querySelector("ul").replaceChildren(...epoch.sentences.map((sentence) => element("li", {}, sentence)));
  }

  // ----- pinned solutions

  const cardOf = (position, place) => pinned.querySelector(`[data-position="${position}"][data-place="${place}"]`);
  const markPinned = () => {
    for (const circle of solutions.children) circle.classList.toggle("pinned", cardOf(run.position, circle.dataset.place) !== null);
  };
  run.pin = (place) => {
    const old = cardOf(run.position, place);
    if (old) old.remove();
    else {
      const card = element("div", { class: "card", "data-position": run.position, "data-place": place });
      const inside = element("div"), remove = element("button", { type: "button" }, "Remove");
      fillCard(run, inside, run.epoch(), place);
      remove.addEventListener("click", () => { card.remove(); markPinned(); });
      card.append(inside, remove);
      pinned.append(card);
    }
    markPinned();
  };

  run.watchers.push((what) => {
    if (what === "epoch") { slider.value = run.position; draw(); describe(); paint(); markPinned(); }
    if (what === "color") paint();
    for (const circle of solutions.children) circle.classList.toggle("chosen", Number(circle.dataset.place) === run.chosen);
    if (run.chosen >= 0) fillCard(run, run.part("details"), run.epoch(), run.chosen);
    else run.part("details").replaceChildren(element("p", {}, "Hover over a solution to see it."));
  });

  // ----- controls

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
    play.setAttribute("aria-pressed", "false");
  }
  play.addEventListener("click", () => {
    if (timer !== null) return stop();
    play.textContent = "Stop";
    play.setAttribute("aria-pressed", "true");
    if (run.isLast()) run.show(0);
    timer = setInterval(() => { if (run.isLast()) stop(); else run.show(run.position + 1); }, 900);
  });
  slider.addEventListener("input", () => { stop(); run.show(Number(slider.value)); });
  color.addEventListener("change", () => { run.colorBy = color.value; run.tell("color"); });
  color.closest(".labeled").hidden = !data.labels;

  function zoomBy(factor) {
    zoom = Math.min(12, Math.max(1, zoom * factor));
    const width = 1050 / zoom, height = 800 / zoom, at = run.chosen >= 0 ? run.epoch().place[run.chosen] : [500, 500];
    const left = Math.min(1025 - width, Math.max(-25, x(at) - width / 2)), top = Math.min(775 - height, Math.max(-25, y(at) - height / 2));
    map.setAttribute("viewBox", `${left} ${top} ${width} ${height}`);
    for (const circle of points.children) circle.setAttribute("r", 4 / Math.sqrt(zoom));
    run.before = undefined;
    draw(); paint(); markPinned();
  }
  run.root.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => zoomBy(Number(button.dataset.zoom))));

  // Returns the nearest solution within NEAR pixels, because circles may be small or overlap.
  function nearest(event) {
    const scale = map.getScreenCTM(), at = new DOMPoint(event.clientX, event.clientY).matrixTransform(scale.inverse());
    let found = -1, least = NEAR / scale.a;
    run.epoch().place.forEach((place, i) => {
      const apart = Math.hypot(x(place) - at.x, y(place) - at.y);
      if (apart < least) [found, least] = [i, apart];
    });
    return found;
  }
  map.addEventListener("pointermove", (event) => {
    const place = nearest(event);
    if (place >= 0 && place !== run.chosen) run.choose(place);
  });
  map.addEventListener("click", (event) => {
    const place = nearest(event);
    if (place >= 0) { run.choose(place); run.pin(place); }
  });
  map.addEventListener("keydown", (event) => {
    const count = run.epoch().number.length;
    if (event.key === "ArrowRight" || event.key === "ArrowDown") run.choose((run.chosen + 1) % count);
    else if (event.key === "ArrowLeft" || event.key === "ArrowUp") run.choose((Math.max(run.chosen, 0) + count - 1) % count);
    else if (event.key === "Enter" && run.chosen >= 0) run.pin(run.chosen);
    else if (event.key === "+" || event.key === "-") zoomBy(event.key === "+" ? 1.5 : 1 / 1.5);
    else if (event.key === "Escape") { pinned.lastElementChild?.remove(); markPinned(); }
    else return;
    event.preventDefault();
  });

  slider.max = data.epochs.length - 1;
  points.append(...data.data.place.map((place) => circleAt(place, 4)));
}
