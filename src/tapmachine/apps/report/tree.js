// The tree of solutions. Leaves show their solution, and branches can be collapsed.

function startTree(run) {
  const svg = run.root.querySelector(".tree");
  if (!svg) return;
  const nodes = [...svg.querySelectorAll(".node")], edges = [...svg.querySelectorAll(".edge")];
  const parent = nodes.map((node) => Number(node.dataset.parent));
  const row = Number(svg.dataset.row), width = svg.viewBox.baseVal.width;
  const folded = new Set();

  // Lay out the visible nodes: leaves are evenly spaced, and branches are centered on their children.
  function layout() {
    const hidden = [], y = [];
    let next = 0.5;
    nodes.forEach((node, i) => {
      hidden[i] = parent[i] >= 0 && (hidden[parent[i]] || folded.has(parent[i]));
      if (!hidden[i] && (node.classList.contains("leaf") || folded.has(i))) y[i] = row * next++;
    });
    for (let i = nodes.length - 1; i >= 0; i--) {
      if (hidden[i] || y[i] !== undefined) continue;
      const above = nodes.map((_, child) => child).filter((child) => parent[child] === i).map((child) => y[child]);
      y[i] = (above[0] + above[above.length - 1]) / 2;
    }
    nodes.forEach((node, i) => {
      node.style.display = edges[i].style.display = hidden[i] ? "none" : "";
      if (hidden[i]) return;
      node.setAttribute("transform", `translate(${node.dataset.x} ${y[i]})`);
      const from = parent[i] >= 0 ? y[parent[i]] : y[i];
      edges[i].setAttribute("d", `M${edges[i].dataset.x} ${from}V${y[i]}H${node.dataset.x}`);
    });
    const height = row * (next - 0.5) + 30;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.querySelectorAll(".ticks text").forEach((tick) => tick.setAttribute("y", height - 6));
  }

  function fold(i) {
    if (folded.has(i)) folded.delete(i);
    else folded.add(i);
    nodes[i].classList.toggle("collapsed", folded.has(i));
    nodes[i].setAttribute("aria-expanded", String(!folded.has(i)));
    layout();
  }

  nodes.forEach((node, i) => {
    const isLeaf = node.classList.contains("leaf"), place = Number(node.dataset.place);
    if (isLeaf && node.dataset.place === undefined) return; // not on the map
    const act = () => { if (isLeaf) { run.showLast(); run.pin(place); } else fold(i); };
    const look = () => { if (isLeaf) { run.showLast(); run.choose(place); } };
    node.addEventListener("pointerover", look);
    node.addEventListener("focus", look);
    node.addEventListener("click", act);
    node.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      act();
    });
  });
  run.watchers.push(() => nodes.forEach((node) => {
    const isChosen = run.isLast() && run.chosen >= 0 && Number(node.dataset.place) === run.chosen;
    node.classList.toggle("chosen", node.classList.contains("leaf") && isChosen);
  }));
}
