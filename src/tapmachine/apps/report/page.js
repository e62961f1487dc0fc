"use strict";
// The map of solutions: a slider over epochs; a solution is shown when pointed at, and stays when clicked.
(() => {
  const page = JSON.parse(document.getElementById("landscape").textContent);
  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const COLORS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const map = byId("map"), solutions = byId("solutions"), slider = byId("epoch"), play = byId("play");
  const NEAR = 24; // pixels
  let current = page.epochs.length - 1; // the position of the epoch
  let chosen = -1; // the solution that is shown, by its place in the epoch's lists
  let timer = null;

  // ----- pictures: each sheet is an image whose rows are solutions

  const sheets = new Map();
  function sheet(source) {
    if (!sheets.has(source)) {
      sheets.set(source, new Promise((resolve, reject) => {
        const image = new Image();
        image.onload = () => {
          const canvas = document.createElement("canvas");
          canvas.width = image.width;
          canvas.height = image.height;
          const context = canvas.getContext("2d", { willReadFrequently: true });
          context.drawImage(image, 0, 0);
          resolve(context);
        };
        image.onerror = () => reject(new Error("a picture in this page cannot be read"));
        image.src = source;
      }));
    }
    return sheets.get(source);
  }

  function canvasOf(source, row, className) {
    const canvas = document.createElement("canvas");
    canvas.className = `${className} ${page.view}`;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", source === page.data.sheet ? `row ${row} of the starts` : "means of the visible units");
    canvas.width = page.width;
    canvas.height = page.view === "bars" ? 100 : page.height;
    sheet(source).then((context) => {
      const values = context.getImageData(0, row, page.width * page.height, 1).data;
      const target = canvas.getContext("2d");
      if (page.view === "bars") {
        target.fillStyle = "#7db4ff";
        for (let i = 0; i < page.width; i++) {
          const height = values[4 * i] / 255 * canvas.height;
          target.fillRect(i, canvas.height - height, 1, height);
        }
      } else {
        const image = target.createImageData(page.width, page.height);
        image.data.set(values);
        target.putImageData(image, 0, 0);
      }
    });
    return canvas;
  }

  // ----- one solution

  function element(name, text, className) {
    const found = document.createElement(name);
    if (text !== undefined) found.textContent = text;
    if (className) found.className = className;
    return found;
  }

  function describe(epoch, place) {
    const stable = epoch.stable[place] ? "stable" : "not stable";
    return `Epoch ${epoch.epoch}, solution ${epoch.number[place]}: F = ${epoch.free_energy[place].toFixed(2)} nats, ` +
      `${epoch.starts[place]} of ${page.starts} starts, ${stable}`;
  }

  function fill(card, epoch, place) {
    card.replaceChildren(canvasOf(epoch.sheet, place, "large"), element("p", describe(epoch, place)));
    if (epoch.examples[place].length) {
      card.append(element("p", "Data that lead to it:"));
      const examples = element("div", undefined, "examples");
      examples.append(...epoch.examples[place].map((row) => canvasOf(page.data.sheet, row, "")));
      card.append(examples);
    }
  }

  function choose(place) {
    chosen = place;
    for (const circle of solutions.children) circle.classList.toggle("chosen", Number(circle.dataset.place) === place);
    const last = current === page.epochs.length - 1;
    for (const leaf of document.querySelectorAll(".leaf")) {
      leaf.classList.toggle("chosen", last && place >= 0 && Number(leaf.dataset.place) === place);
    }
    if (place >= 0) fill(byId("details"), page.epochs[current], place);
    else byId("details").replaceChildren(element("p", "Point at a solution to see it."));
  }

  // ----- pinned ones

  function cardOf(position, place) {
    return byId("pinned").querySelector(`[data-position="${position}"][data-place="${place}"]`);
  }

  function markPinned() {
    for (const circle of solutions.children) {
      circle.classList.toggle("pinned", cardOf(current, circle.dataset.place) !== null);
    }
  }

  function pin(place) {
    const old = cardOf(current, place);
    if (old) {
      old.remove();
    } else {
      const card = element("div", undefined, "card"), inside = element("div");
      card.dataset.position = current;
      card.dataset.place = place;
      fill(inside, page.epochs[current], place);
      const remove = element("button", "Remove");
      remove.type = "button";
      remove.addEventListener("click", () => { card.remove(); markPinned(); });
      card.append(inside, remove);
      byId("pinned").append(card);
    }
    markPinned();
  }

  // ----- the map

  const x = (place) => place[0], y = (place) => 750 - 0.75 * place[1];

  function circleAt(place, radius) {
    const circle = document.createElementNS(SVG, "circle");
    circle.setAttribute("r", radius);
    circle.style.transform = `translate(${x(place)}px, ${y(place)}px)`;
    return circle;
  }

  function color(share) {
    const at = share * (COLORS.length - 1), low = Math.min(COLORS.length - 2, Math.floor(at));
    return `rgb(${COLORS[low].map((c, i) => Math.round(c + (COLORS[low + 1][i] - c) * (at - low))).join()})`;
  }

  function show(position) {
    const before = page.epochs[current];
    const forward = position === current + 1;
    current = position;
    slider.value = position;
    const epoch = page.epochs[position];
    const all = epoch.total === epoch.number.length ? "" : `, ${epoch.number.length} of them shown`;
    const lowest = Math.min(...epoch.free_energy), highest = Math.max(...epoch.free_energy);
    const range = epoch.number.length ? `; F from ${lowest.toFixed(1)} to ${highest.toFixed(1)}` : "";
    byId("which").textContent = `${epoch.epoch}: ${epoch.total} solution${epoch.total === 1 ? "" : "s"}${all}${range}`;
    slider.setAttribute("aria-valuetext", byId("which").textContent);
    // By rank: one that lies far off would make all the others look the same.
    const rank = [];
    epoch.place.map((_, i) => i).sort((a, b) => epoch.free_energy[a] - epoch.free_energy[b]).forEach((i, r) => { rank[i] = r; });
    // Small ones last, so that they lie on top of large ones.
    const order = epoch.place.map((_, i) => i).sort((a, b) => epoch.starts[b] - epoch.starts[a]);
    solutions.replaceChildren(...order.map((place) => {
      const radius = 7 + 28 * Math.sqrt(epoch.starts[place] / page.starts);
      const from = forward && epoch.from[place] >= 0 ? before.place[epoch.from[place]] : epoch.place[place];
      const circle = circleAt(from, radius);
      circle.dataset.place = place;
      circle.style.fill = color(rank[place] / Math.max(1, rank.length - 1));
      return circle;
    }));
    if (forward) {
      void solutions.getBoundingClientRect(); // drawn where they come from, so that they move
      for (const circle of solutions.children) {
        const place = epoch.place[circle.dataset.place];
        circle.style.transform = `translate(${x(place)}px, ${y(place)}px)`;
      }
    }
    choose(-1);
    markPinned();
  }

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
    if (current === page.epochs.length - 1) show(0);
    timer = setInterval(() => {
      if (current + 1 < page.epochs.length) show(current + 1);
      else stop();
    }, 900);
  });
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });

  // The nearest solution, if it is near enough: circles may be too small to hit, and lie on each other.
  function nearest(event) {
    const scale = map.getScreenCTM();
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(scale.inverse());
    let found = -1, least = NEAR / scale.a;
    page.epochs[current].place.forEach((place, i) => {
      const apart = Math.hypot(x(place) - at.x, y(place) - at.y);
      if (apart < least) [found, least] = [i, apart];
    });
    return found;
  }
  map.addEventListener("pointermove", (event) => {
    const place = nearest(event);
    if (place >= 0 && place !== chosen) choose(place);
  });
  map.addEventListener("click", (event) => {
    const place = nearest(event);
    if (place < 0) return;
    choose(place);
    pin(place);
  });
  map.addEventListener("keydown", (event) => {
    const count = page.epochs[current].number.length;
    if (event.key === "ArrowRight" || event.key === "ArrowDown") choose((chosen + 1) % count);
    else if (event.key === "ArrowLeft" || event.key === "ArrowUp") choose((Math.max(chosen, 0) + count - 1) % count);
    else if (event.key === "Enter" && chosen >= 0) pin(chosen);
    else if (event.key === "Escape") { byId("pinned").lastElementChild?.remove(); markPinned(); }
    else return;
    event.preventDefault();
  });
  for (const leaf of document.querySelectorAll(".leaf")) {
    if (leaf.dataset.place === undefined) continue; // not among those on the map
    const place = Number(leaf.dataset.place);
    const toLast = () => { if (current !== page.epochs.length - 1) show(page.epochs.length - 1); };
    const look = () => { toLast(); choose(place); };
    leaf.addEventListener("pointerover", look);
    leaf.addEventListener("focus", look);
    leaf.addEventListener("click", () => { toLast(); pin(place); });
    leaf.addEventListener("keydown", (event) => { if (event.key === "Enter") pin(place); });
  }

  byId("explorer").hidden = false;
  slider.max = page.epochs.length - 1;
  byId("data-points").append(...page.data.place.map((place) => circleAt(place, 3)));
  show(current);
})();
