/* Search without a server: browsers refuse workers on pages opened from disk, so an invisible frame takes their place. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.target = frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source !== this.target) return;
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      });
      const page = this.target.document;
      this.ready = new Promise((resolve) => {
        page.open();
        page.write(
          "<script>var IFrameWorker = parent.IFrameWorker;" +
            "var postMessage = function (data) { parent.postMessage(data, '*'); };" +
            "var importScripts = function () { return Promise.all(Array.from(arguments).map(function (url) {" +
            "  return new Promise(function (done, failed) { var script = document.createElement('script');" +
            "    script.src = url; script.onload = done; script.onerror = failed; document.body.appendChild(script); });" +
            "})); };<\/script>"
        );
        const script = page.createElement("script");
        script.src = url;
        script.onload = resolve;
        page.close();
        page.body.appendChild(script);
      });
    }
    postMessage(data) {
      this.ready.then(() => this.target.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
