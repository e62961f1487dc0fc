// Buttons that save a figure as SVG or PNG, in the colors of the page.

const STYLES = ["color", "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin", "font", "text-anchor", "opacity", "display", "transform", "image-rendering", "filter"];
const PNG_SCALE = 2;

function standalone(svg) {
  const copy = svg.cloneNode(true), originals = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((made, i) => {
    if (originals[i].closest("defs")) return; // markers take their colors from the elements that use them
    const computed = getComputedStyle(originals[i]);
    made.setAttribute("style", STYLES.map((name) => `${name}:${computed.getPropertyValue(name)}`).join(";"));
  });
  const { width, height } = svg.getBoundingClientRect();
  const background = document.createElementNS(SVG, "rect"), box = svg.viewBox.baseVal;
  Object.entries({ x: box.x, y: box.y, width: box.width, height: box.height }).forEach(([name, value]) => background.setAttribute(name, value));
  background.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
  copy.prepend(background);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  return { text: new XMLSerializer().serializeToString(copy), width, height };
}

const uriOf = (text) => `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;

function download(href, name) {
  const link = element("a", { href, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

function savePng({ text, width, height }, name) {
  const image = new Image();
  image.onload = () => {
    const canvas = element("canvas", { width: Math.round(PNG_SCALE * width), height: Math.round(PNG_SCALE * height) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    download(canvas.toDataURL("image/png"), name);
  };
  image.src = uriOf(text);
}

function startSaving() {
  for (const figure of document.querySelectorAll(".figure")) {
    const svg = figure.querySelector("svg"), { name } = figure.dataset;
    if (!svg) continue;
    const buttons = ["SVG", "PNG"].map((kind) => {
      const button = element("button", { type: "button", title: `Save as ${kind}`, "aria-label": `Save ${name} as ${kind}` }, kind);
      button.addEventListener("click", () => {
        const drawing = standalone(svg), file = `${name.replace(/[^\w.-]+/g, "_")}.${kind.toLowerCase()}`;
        if (kind === "SVG") download(uriOf(drawing.text), file);
        else savePng(drawing, file);
      });
      return button;
    });
    figure.append(element("span", { class: "save" }, ...buttons));
  }
}
