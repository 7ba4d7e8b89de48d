// The panel that runs packed networks on images: what is drawn, dropped or chosen goes through all of them.
// Everything it needs stands in the page as base64: the C runtime as WebAssembly, and each network.
(async () => {
  const panel = document.querySelector(".live");
  const given = JSON.parse(panel.querySelector("script").textContent);
  const [channels, height, width] = given.shape;
  const find = (name) => panel.querySelector(name);
  const stage = find(".stage canvas"), seen = find(".seen canvas"), note = find(".said");
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

  // ------------------------------------------------------------------------------------------------ the runtime

  const LINE = 64;  // everything begins at a multiple of it
  const up = (address) => Math.ceil(address / LINE) * LINE;

  // A packed network in a memory of its own: the blob, one input, one output, and the arena.
  const network = async (module, blob) => {
    const { exports: c } = await WebAssembly.instantiate(module);
    const needs = (end) => {
      const pages = Math.ceil((end - c.memory.buffer.byteLength) / 65536);
      if (pages > 0) c.memory.grow(pages);
    };
    const at = up(c.__heap_base.value), words = up(at + blob.length);
    needs(words + 2 * LINE);
    new Uint8Array(c.memory.buffer).set(blob, at);
    const wrong = c.qrn_check(at, blob.length);
    if (wrong) {
      const text = new Uint8Array(c.memory.buffer, wrong);
      throw new Error(new TextDecoder().decode(text.slice(0, text.indexOf(0))));
    }
    const count = (ask) => {  // of the numbers in the first input or output
      ask(words, at, 0);
      const [, axes, ...sizes] = new Uint32Array(c.memory.buffer, words, 7);
      return sizes.slice(0, axes).reduce((all, size) => all * size, 1);
    };
    const pixels = count(c.qrn_input), classes = count(c.qrn_output), ram = c.qrn_arena(at, 1);
    const input = words + LINE, output = up(input + pixels), arena = up(output + 4 * classes);
    needs(arena + ram);
    new Uint32Array(c.memory.buffer, words, 2).set([input, output]);
    const run = () => c.qrn_run(at, arena, ram, words, words + 4);
    let least = Infinity;
    return {
      scores(image) {
        new Uint8Array(c.memory.buffer, input, pixels).set(image);
        if (run()) throw new Error("it did not run");
        return Array.from(new Float32Array(c.memory.buffer, output, classes));
      },
      // The least of several times so far: a browser makes code faster while it runs. Its clock may be as coarse as a
      // tenth of a millisecond, so as many runs as take some.
      microseconds() {
        for (let runs = 1, tries = 0; tries < 3;) {
          const begin = performance.now();
          for (let n = 0; n < runs; n++) run();
          const took = performance.now() - begin;
          if (took < 4) runs *= 2;
          else [least, tries] = [Math.min(least, 1000 * took / runs), tries + 1];
        }
        return least;
      },
    };
  };

  // ------------------------------------------------------------------------------------------------ images

  const context = (canvas) => canvas.getContext("2d", { willReadFrequently: true });
  const [paper, ink] = given.ink === "white" ? ["black", "white"] : ["white", "black"];
  let strokes = [], picture = null;  // what the networks look at: one or the other

  const fresh = (w, h) => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [w, h];
    const brush = context(canvas);
    brush.fillStyle = paper;
    brush.fillRect(0, 0, w, h);
    return brush;
  };

  // The planes of a canvas that has `times` by `times` pixels for each of the network's, from 0 to 1.
  const planes = (brush, times) => {
    const { data } = brush.getImageData(0, 0, times * width, times * height);
    const sums = new Float64Array(channels * width * height);
    for (let y = 0; y < times * height; y++) {
      for (let x = 0; x < times * width; x++) {
        const p = 4 * (y * times * width + x), to = Math.floor(y / times) * width + Math.floor(x / times);
        const [r, g, b] = [data[p], data[p + 1], data[p + 2]];
        if (channels === 1) sums[to] += (19595 * r + 38470 * g + 7471 * b + 32768) >> 16;
        else [r, g, b].forEach((value, n) => { sums[n * width * height + to] += value; });
      }
    }
    return sums.map((sum) => sum / (255 * times * times));
  };

  // As much of the middle of a picture as has the proportions of the network's images, and how large that is.
  const middle = ({ width: w, height: h }) => {
    const scale = Math.min(w / width, h / height);
    return [(w - scale * width) / 2, (h - scale * height) / 2, scale * width, scale * height];
  };

  const pictured = () => {
    const part = middle(picture);
    const times = Math.max(1, Math.min(Math.ceil(part[2] / width), Math.ceil(512 / Math.max(width, height))));
    const brush = fresh(times * width, times * height);
    brush.imageSmoothingQuality = "high";
    brush.drawImage(picture, ...part, 0, 0, times * width, times * height);
    const shares = planes(brush, times);
    return find(".invert")?.checked ? shares.map((share) => 1 - share) : shares;
  };

  const lines = (brush, pen, place) => {
    brush.strokeStyle = ink;
    brush.lineWidth = pen;
    brush.lineCap = brush.lineJoin = "round";
    for (const points of strokes) {
      brush.beginPath();
      points.forEach((point, n) => brush[n ? "lineTo" : "moveTo"](...place(point)));
      const [x, y] = place(points.at(-1));
      brush.lineTo(x + 0.01, y);  // a dot is a line, too, but for a canvas only if it has a length
      brush.stroke();
    }
  };

  // The drawing as the images of the data set are: of their size, in their place, by a pen as wide as theirs.
  const drawn = () => {
    const times = Math.ceil(224 / Math.max(width, height)), frame = given.frame;
    const blank = () => fresh(times * width, times * height);
    if (!frame) {
      const brush = blank();
      lines(brush, times * width * given.pen, ([x, y]) => [x * times * width, y * times * height]);
      return planes(brush, times);
    }
    const points = strokes.flat(), pen = times * frame.pen;
    const [left, top, right, bottom] = [Math.min, Math.max].flatMap(
      (most) => [0, 1].map((axis) => points.reduce((end, point) => most(end, point[axis]), points[0][axis])));
    const least = 0.12;  // of the stage: a dot does not become a disc
    const across = Math.max(right - left, least), down = Math.max(bottom - top, least, frame.stretched ? across / 2 : 0);
    const fit = [(times * frame.width - pen) / across, (times * frame.height - pen) / down];
    const [sx, sy] = frame.stretched ? [Math.min(...fit), fit[1]] : [Math.min(...fit), Math.min(...fit)];
    const place = (dx, dy) => ([x, y]) => [
      (x - (left + right) / 2) * sx + times * width / 2 + dx, (y - (top + bottom) / 2) * sy + times * height / 2 + dy];
    const centred = blank();
    lines(centred, pen, place(0, 0));
    if (!frame.by_mass) return planes(centred, times);
    const { data } = centred.getImageData(0, 0, times * width, times * height);
    let mass = 0, mx = 0, my = 0;
    for (let n = 0; n < data.length / 4; n++) {
      const share = Math.abs(data[4 * n] - (paper === "white" ? 255 : 0));
      mass += share;
      mx += share * (n % (times * width) + 0.5);
      my += share * (Math.floor(n / (times * width)) + 0.5);
    }
    const moved = blank();
    lines(moved, pen, place(times * width / 2 - mx / mass, times * height / 2 - my / mass));
    return planes(moved, times);
  };

  const show = (image) => {
    const brush = context(seen), pixels = brush.createImageData(width, height);  // transparent
    for (let n = 0; image && n < width * height; n++) {
      for (let part = 0; part < 3; part++) {
        pixels.data[4 * n + part] = Math.round(255 * image[channels === 1 ? n : part * width * height + n] / given.top);
      }
      pixels.data[4 * n + 3] = 255;
    }
    brush.putImageData(pixels, 0, 0);
  };

  const paint = () => {
    const brush = context(stage);
    brush.clearRect(0, 0, stage.width, stage.height);
    if (picture) brush.drawImage(picture, ...middle(picture), 0, 0, stage.width, stage.height);
    lines(brush, stage.width * given.pen, ([x, y]) => [x * stage.width, y * stage.height]);
    find(".stage p").hidden = Boolean(picture || strokes.length);
  };

  // ------------------------------------------------------------------------------------------------ answers

  const MOST = 12;  // bars: of more classes those with the highest scores
  const name = (n) => given.classes[n] ?? String(n);
  const percent = (share) => `${Math.round(100 * share)}\u00a0%`;

  const card = (root) => {
    const rows = [];
    const list = root.querySelector(".bars");
    const row = () => {
      const item = list.appendChild(document.createElement("li"));
      const [label, track, share] = [["span", "name"], ["span", "track"], ["span", "share"]].map(([kind, of]) => {
        const part = item.appendChild(document.createElement(kind));
        part.className = of;
        return part;
      });
      const fill = track.appendChild(document.createElement("span"));
      return { item, label, fill, share };
    };
    return (scores) => {
      const shown = Math.min(MOST, scores?.length ?? given.scores);
      while (rows.length < shown) rows.push(row());
      const largest = Math.max(...scores ?? [0]), powers = (scores ?? []).map((score) => Math.exp(score - largest));
      const total = powers.reduce((sum, power) => sum + power, 0);
      const order = Array.from({ length: scores?.length ?? shown }, (_, n) => n);
      if (order.length > MOST) order.sort((a, b) => powers[b] - powers[a]);
      const best = scores ? scores.indexOf(largest) : -1;
      rows.forEach(({ item, label, fill, share }, n) => {
        const part = scores ? powers[order[n]] / total : 0;
        label.textContent = scores || order.length <= MOST ? name(order[n]) : "–";
        fill.style.width = `${100 * part}%`;
        share.textContent = scores ? percent(part) : "";
        item.className = order[n] === best ? "best" : "";
      });
      const said = scores ? `${name(best)}, ${percent(powers[best] / total)}` : "–";
      const output = root.querySelector("output");
      if (output.textContent !== said) output.textContent = said;
    };
  };

  // ------------------------------------------------------------------------------------------------ what happens

  paint();
  show(null);
  const cards = [...panel.querySelectorAll(".answer")].map(card);
  cards.forEach((fill) => fill(null));
  let networks;
  try {
    const module = await WebAssembly.compile(bytes(given.wasm));
    networks = await Promise.all(given.networks.map((text) => network(module, bytes(text))));
  } catch (reason) {
    note.textContent = `The networks cannot be run in this browser, which must have WebAssembly with SIMD: ${reason.message}.`;
    return;
  }

  const answer = () => {
    paint();
    if (!picture && !strokes.length) {
      show(null);
      cards.forEach((fill) => fill(null));
      return;
    }
    const image = Uint8Array.from(picture ? pictured() : drawn(), (share) => Math.round(given.top * share));
    const scores = networks.map((one) => one.scores(image));
    show(image);
    scores.forEach((of, n) => cards[n](of));
    panel.dispatchEvent(new CustomEvent("answer", { detail: { pixels: Array.from(image), scores } }));
  };
  let asked = false;
  const soon = () => {
    if (!asked) requestAnimationFrame(() => { asked = false; answer(); });
    asked = true;
  };
  const measure = () => networks.forEach((one, n) => {
    const time = one.microseconds();
    const text = time < 10 ? time.toFixed(1) : Math.round(time).toLocaleString("en");
    panel.querySelectorAll(".time")[n].textContent = `${text}\u00a0µs`;
  });

  const clear = () => {
    [strokes, picture] = [[], null];
    note.textContent = "";
  };
  find(".clear").addEventListener("click", () => { clear(); answer(); });
  find(".invert")?.addEventListener("change", answer);

  const open = async (file) => {
    let opened;
    try {
      opened = await createImageBitmap(file);
    } catch {
      note.textContent = `${file.name} is no image that this browser can read.`;
      return;
    }
    [strokes, picture, note.textContent] = [[], opened, ""];
    answer();
    setTimeout(measure);
  };
  find("input[type=file]").addEventListener("change", ({ target }) => {
    const [file] = target.files;
    target.value = "";  // the same file may be chosen again
    if (file) open(file);
  });
  // Anywhere on the page: else the browser would leave it for the image.
  const over = (event, is) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    find(".stage").classList.toggle("over", is);
  };
  addEventListener("dragover", (event) => over(event, true));
  addEventListener("dragleave", (event) => over(event, false));
  addEventListener("drop", (event) => {
    over(event, false);
    const [file] = event.dataTransfer.files;
    if (file) open(file);
  });

  if (given.draw) {
    let pen = null;  // the pointer that draws
    const point = ({ clientX, clientY }) => {
      const { left, top, width: w, height: h } = stage.getBoundingClientRect();
      return [(clientX - left) / w, (clientY - top) / h];
    };
    stage.addEventListener("pointerdown", (event) => {
      if (pen !== null || event.button !== 0) return;
      event.preventDefault();
      stage.setPointerCapture(event.pointerId);
      pen = event.pointerId;
      if (picture) clear();
      strokes.push([point(event)]);
      soon();
    });
    stage.addEventListener("pointermove", (event) => {
      if (event.pointerId !== pen) return;
      const parts = event.getCoalescedEvents?.() ?? [];
      strokes.at(-1).push(...(parts.length ? parts : [event]).map(point));
      soon();
    });
    const lifted = (event) => {
      if (event.pointerId !== pen) return;
      pen = null;
      answer();
      setTimeout(measure);
    };
    stage.addEventListener("pointerup", lifted);
    stage.addEventListener("pointercancel", lifted);
  }
  measure();
  setTimeout(measure, 500);
  panel.dataset.ready = "yes";
})();
