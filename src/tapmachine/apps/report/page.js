// Functions shared by all parts of the page: the state of a run, HTML elements, and images of rows.

const SVG = "http://www.w3.org/2000/svg";
const RAMP = [[56, 108, 212], [64, 170, 178], [150, 190, 90], [240, 165, 60]];
const MOST_NAMED = 8; // maximum number of columns listed for a row

function element(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "class") made.className = value;
    else if (key === "style") Object.assign(made.style, value);
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const percent = (share) => `${share < 0.001 ? "<0.1" : (100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;
const rampColor = (share) => {
  const at = share * (RAMP.length - 1), low = Math.min(RAMP.length - 2, Math.floor(at));
  return `rgb(${RAMP[low].map((c, i) => Math.round(c + (RAMP[low + 1][i] - c) * (at - low))).join()})`;
};

// The state of a run: the epoch and the selected solution. Parts of the page register watchers for changes.
function runOf(root) {
  const data = JSON.parse(root.querySelector("script.data").textContent);
  const run = {
    root, data, position: data.epochs.length - 1, chosen: -1, colorBy: data.labels ? "label" : "energy", watchers: [],
    part: (name) => root.querySelector(`[data-part="${name}"]`),
    epoch: () => data.epochs[run.position],
    isLast: () => run.position === data.epochs.length - 1,
    tell: (what) => run.watchers.forEach((watcher) => watcher(what)),
    show(position) { [run.before, run.position, run.chosen] = [run.position, position, -1]; run.tell("epoch"); },
    showLast() { if (!run.isLast()) run.show(data.epochs.length - 1); },
    choose(place) { run.chosen = place; run.tell("chosen"); },
  };
  for (const epoch of data.epochs) addMembers(epoch, data);
  return run;
}

// Compute the starts that converge to each solution, their number and their labels.
function addMembers(epoch, data) {
  epoch.members = epoch.number.map(() => []);
  epoch.basin.forEach((place, start) => { if (place >= 0) epoch.members[place].push(start); });
  epoch.starts = epoch.members.map((members) => members.length);
  epoch.label = epoch.number.map(() => -1);
  const order = epoch.number.map((_, i) => i).sort((a, b) => epoch.free_energy[a] - epoch.free_energy[b]);
  epoch.rank = [];
  order.forEach((place, rank) => { epoch.rank[place] = rank / Math.max(1, order.length - 1); });
  if (!data.labels) return;
  epoch.shares = epoch.members.map((members) => {
    const counts = data.labels.names.map(() => 0);
    members.forEach((start) => { counts[data.labels.of[start]]++; });
    return counts;
  });
  epoch.label = epoch.shares.map((counts) => counts.indexOf(Math.max(...counts)));
}

function colorOf(run, epoch, place) {
  const { labels } = run.data;
  return run.colorBy === "label" && labels ? labels.colors[epoch.label[place]] : rampColor(epoch.rank[place]);
}

// ----- images: each pixel row of a sheet is a solution or a start

const sheets = new Map();
function pixelsOf(source) {
  if (!sheets.has(source)) {
    sheets.set(source, new Promise((resolve, reject) => {
      const image = new Image();
      image.onload = () => {
        const canvas = element("canvas", { width: image.width, height: image.height });
        const context = canvas.getContext("2d", { willReadFrequently: true });
        context.drawImage(image, 0, 0);
        resolve(context);
      };
      image.onerror = () => reject(new Error("an image on this page could not be decoded"));
      image.src = source;
    }));
  }
  return sheets.get(source);
}

function canvasOf(run, source, row, className, label) {
  const { view, width, height } = run.data;
  const tall = view === "bars" ? 100 : height;
  const canvas = element("canvas", { class: `${className} ${view}`, role: "img", "aria-label": label, width, height: tall });
  pixelsOf(source).then((context) => {
    const values = context.getImageData(0, row, width * height, 1).data, target = canvas.getContext("2d");
    canvas.values = Array.from({ length: width * height }, (_, i) => values[4 * i] / 255);
    if (view === "bars") {
      target.fillStyle = "#7db4ff";
      canvas.values.forEach((value, i) => target.fillRect(i, tall * (1 - value), 1, tall * value));
    } else {
      const image = target.createImageData(width, height);
      image.data.set(values);
      target.putImageData(image, 0, 0);
    }
    canvas.dispatchEvent(new Event("drawn"));
  });
  return canvas;
}

// For rows that are not images: the names of the columns that differ most from the mean of the data.
function namedColumns(run, canvas) {
  const { names, usual } = run.data;
  if (!names.length) return null;
  const table = element("table");
  canvas.addEventListener("drawn", () => {
    const order = names.map((_, i) => i).sort((a, b) => Math.abs(canvas.values[b] - usual[b]) - Math.abs(canvas.values[a] - usual[a]));
    table.append(...order.slice(0, MOST_NAMED).map((i) => element("tr", {},
      element("th", {}, names[i]), element("td", {}, canvas.values[i] > usual[i] ? "▲ high" : "▼ low"))));
  });
  return table;
}

function shareBar(run, epoch, place) {
  const { labels } = run.data;
  if (!labels) return null;
  const counts = epoch.shares[place], total = epoch.starts[place];
  const order = counts.map((_, i) => i).filter((i) => counts[i]).sort((a, b) => counts[b] - counts[a]);
  return element("div", { class: "shares", role: "img", "aria-label": order.map((i) => `${labels.names[i]}: ${counts[i]}`).join(", ") },
    ...order.map((i) => element("span", { title: `${labels.names[i]}: ${counts[i]}`, style: { width: `${100 * counts[i] / total}%`, background: labels.colors[i] } })));
}

function fillCard(run, card, epoch, place) {
  const { labels, data, starts } = run.data;
  const large = canvasOf(run, epoch.sheet, place, "large", "means of the visible units");
  const words = `Epoch ${epoch.epoch}, solution ${epoch.number[place]}: probability ${percent(epoch.probability[place])}, F = ${epoch.free_energy[place].toFixed(2)} nats, ` +
    `${epoch.starts[place]} of ${starts} starts, ${epoch.stable[place] ? "stable" : "not stable"}`;
  const most = labels && epoch.starts[place] ? `${labels.names[epoch.label[place]]}: ${Math.round(100 * Math.max(...epoch.shares[place]) / epoch.starts[place])}% of the starts` : null;
  const examples = epoch.members[place].slice(0, 4);
  card.replaceChildren(large, element("p", {}, words), ...[
    most && element("p", {}, most), shareBar(run, epoch, place), namedColumns(run, large),
    examples.length && element("p", {}, "Data rows that converge to this solution:"),
    examples.length && element("div", { class: "examples" },
      ...examples.map((row) => canvasOf(run, data.sheet, row, "", `start ${row}`))),
  ].filter(Boolean));
}

document.querySelectorAll(".run").forEach((root) => {
  if (!root.querySelector("script.data")) return;
  root.querySelectorAll(".scripted").forEach((part) => { part.hidden = false; });
  const run = runOf(root);
  [startMap, startGallery, startTree, startFields].forEach((start) => start(run));
  run.tell("epoch");
});
startSaving();
