// Receptive fields: a click enlarges a field and shows the data rows with the highest activation of its unit.

function startFields(run) {
  for (const root of run.root.querySelectorAll(".fields")) {
    const layer = run.data.fields.find((own) => own.layer === Number(root.dataset.layer));
    if (!layer) continue;
    const svg = root.querySelector("svg"), image = svg.querySelector("image"), card = root.querySelector(".card");
    const rows = Math.ceil(layer.unit.length / layer.columns);
    // The image in the coordinates of the SVG element.
    const from = image.getBBox(), to = svg.getScreenCTM().inverse().multiply(image.getScreenCTM());
    const corner = new DOMPoint(from.x, from.y).matrixTransform(to), end = new DOMPoint(from.x + from.width, from.y + from.height).matrixTransform(to);
    const box = [corner.x, corner.y, end.x - corner.x, end.y - corner.y];
    const frame = document.createElementNS(SVG, "rect");
    frame.setAttribute("style", "fill:none;stroke:var(--accent);stroke-width:3");
    svg.append(frame);
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("role", "application");
    svg.setAttribute("aria-label", `${layer.unit.length} receptive fields; use the arrow keys to move between them`);
    let chosen = 0;

    function show(place) {
      chosen = place;
      const [column, row] = [place % layer.columns, Math.floor(place / layer.columns)];
      const cell = [box[2] / layer.columns, box[3] / rows];
      const values = { x: box[0] + column * cell[0], y: box[1] + row * cell[1], width: cell[0], height: cell[1] };
      Object.entries(values).forEach(([name, value]) => frame.setAttribute(name, value));
      const large = element("canvas", { class: "large signed", role: "img", "aria-label": `receptive field of unit ${layer.unit[place]}` });
      pixelsOf(image.getAttribute("href")).then((context) => {
        const { width, height } = context.canvas, [wide, tall] = [width / layer.columns, height / rows];
        const size = [Math.floor(wide), Math.floor(tall)];
        [large.width, large.height] = size;
        large.getContext("2d").drawImage(context.canvas, Math.round(column * wide), Math.round(row * tall), ...size, 0, 0, ...size);
      });
      card.hidden = false;
      card.replaceChildren(large, element("p", {}, `Unit ${layer.unit[place]}: mean activation ${layer.activation[place]}`),
        element("p", {}, "Data rows with the highest activation:"),
        element("div", { class: "examples" }, ...layer.rows[place].map((start) => canvasOf(run, run.data.data.sheet, start, "", `start ${start}`))));
    }

    svg.addEventListener("click", (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const column = Math.floor((at.x - box[0]) / box[2] * layer.columns), row = Math.floor((at.y - box[1]) / box[3] * rows);
      const place = row * layer.columns + column;
      if (column >= 0 && column < layer.columns && place >= 0 && place < layer.unit.length) show(place);
    });
    svg.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: layer.columns, ArrowUp: -layer.columns };
      if (!(event.key in steps)) return;
      event.preventDefault();
      show(Math.min(layer.unit.length - 1, Math.max(0, card.hidden ? 0 : chosen + steps[event.key])));
    });
  }
}
