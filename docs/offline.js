// Search in pages opened from a folder: browsers refuse workers there, so a hidden frame runs their code.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const place = new URL(url, location.href).href;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      this.frame.answer = (data) => this.deliver(data);
      this.ready = new Promise((resolve) => { this.frame.onload = resolve; });
      this.frame.srcdoc =
        `<script>window.postMessage = (data) => frameElement.answer(data)</` + `script>` +
        `<script src="${place}"></` + `script>`;
      document.documentElement.append(this.frame);
    }
    deliver(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }
    postMessage(data) {
      this.ready.then(() => {
        const inside = this.frame.contentWindow;
        inside.dispatchEvent(new inside.MessageEvent("message", { data }));
      });
    }
    terminate() {
      this.frame.remove();
    }
  };
}
