/* Search runs in a worker, which browsers refuse to a page that is opened from a disk: there a hidden frame does its work. */
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    const inside = frame.contentWindow;
    window.addEventListener("message", (event) => {
      if (event.source === inside) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
    });
    // In a worker `postMessage` answers its page, and `importScripts` is there.
    inside.document.open();
    inside.document.write(`<!doctype html><body><script>
      const page = parent;
      postMessage = (data) => page.postMessage(data, "*");
      importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done) => {
        const script = document.createElement("script");
        script.src = url;
        script.onload = done;
        document.body.append(script);
      })), Promise.resolve());
    </script>`);
    const script = inside.document.createElement("script");
    script.src = new URL(url, location.href).href;
    this.loaded = new Promise((done) => { script.onload = done; });
    inside.document.body.append(script);
    inside.document.close();
    this.inside = inside;
  }

  postMessage(data) {
    this.loaded.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })));
  }

  terminate() {}
}

if (location.protocol === "file:") window.Worker = FrameWorker;
