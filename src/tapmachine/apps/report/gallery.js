// Gallery of all solutions of an epoch, sorted by basin size, free energy or label.

function startGallery(run) {
  const gallery = run.part("gallery"), sort = run.part("sort"), { labels } = run.data;
  if (!labels) sort.querySelector('[value="label"]').remove();
  const keys = {
    starts: (epoch) => (a, b) => epoch.starts[b] - epoch.starts[a],
    energy: (epoch) => (a, b) => epoch.free_energy[a] - epoch.free_energy[b],
    label: (epoch) => (a, b) => epoch.label[a] - epoch.label[b] || epoch.starts[b] - epoch.starts[a],
  };

  function fill() {
    const epoch = run.epoch(), order = epoch.number.map((_, i) => i).sort(keys[sort.value](epoch));
    run.part("gallery-count").textContent = `(${order.length})`;
    gallery.replaceChildren(...order.map((place) => {
      const words = [percent(epoch.probability[place]), `F ${epoch.free_energy[place].toFixed(2)}`, plural(epoch.starts[place], "start")];
      const button = element("button", { type: "button", "data-place": place },
        canvasOf(run, epoch.sheet, place, "", `solution ${epoch.number[place]}`), shareBar(run, epoch, place),
        ...words.map((word) => element("span", {}, word)));
      button.addEventListener("pointerenter", () => run.choose(place));
      button.addEventListener("focus", () => run.choose(place));
      button.addEventListener("click", () => run.pin(place));
      return button;
    }));
  }

  sort.addEventListener("change", fill);
  run.watchers.push((what) => {
    if (what === "epoch") fill();
    for (const button of gallery.children) button.classList.toggle("chosen", Number(button.dataset.place) === run.chosen);
  });
}
