// A browser starts no worker of a page that was opened from disk. The search needs one: here it is a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inner.importScripts = () => {};
      this.waiting = [];
      const script = this.inner.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      };
      this.inner.document.documentElement.append(script);
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.inner.dispatchEvent(new MessageEvent("message", { data }));
    }
    terminate() {}
  };
}
