// The gateway's endpoints. Errors carry `param`, the name of the wrong field, and `status`.

const KEY = "qwen3-tts-key";
const KEY_PROTOCOL = "openai-insecure-api-key.";
const BROKEN_OFF = "The connection broke off before the end of the speech.";
const POLICY_VIOLATION = 1008; // the gateway has sent an error
const WORDS = "timestamp_granularities";
const untimed = new Set(); // models that have refused to tell words, by endpoint

const asking = (endpoint, fields) =>
  untimed.has(`${endpoint} ${fields.model}`) ? fields : { ...fields, [WORDS]: ["word"] };
const stopAsking = (endpoint, { model }) => untimed.add(`${endpoint} ${model}`);

export class ApiError extends Error {
  constructor({ message, param }, status) {
    super(message);
    Object.assign(this, { param, status });
  }
}

export const saveKey = (key) => sessionStorage.setItem(KEY, key);

export async function call(path, { headers, ...options } = {}) {
  const key = sessionStorage.getItem(KEY);
  const access = key ? { authorization: `Bearer ${key}` } : {};
  const response = await fetch(path, { ...options, headers: { ...headers, ...access } }).catch(() => {
    throw new Error("The gateway cannot be reached.");
  });
  if (response.ok) return response;
  if (response.status === 401) throw new ApiError({ message: "A valid API key is required." }, 401);
  const { error } = await response.json().catch(() => ({}));
  throw new ApiError(error ?? { message: `${response.status} ${response.statusText}` }, response.status);
}

export const getJson = async (path) => (await call(path)).json();

// Yields {samples}, an Int16Array, and {words} as they arrive; aborting the signal cancels the speech on the server.
export async function* speech(fields, signal) {
  const request = (body) =>
    call("v1/audio/speech", {
      method: "POST",
      signal,
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ ...body, response_format: "pcm", stream_format: "sse" }),
    });
  const response = await request(asking("http", fields)).catch((error) => {
    if (error.param !== WORDS) throw error;
    stopAsking("http", fields);
    return request(fields);
  });
  for await (const event of events(response.body)) {
    if (event.type === "speech.audio.delta") yield { samples: decoded(event.audio) };
    if (event.type === "speech.audio.words") yield { words: event.words };
    if (event.type === "speech.audio.error") throw new ApiError(event.error);
    if (event.type === "speech.audio.done") return;
  }
  throw new Error(BROKEN_OFF);
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ; ) {
    const { done, value } = await reader.read().catch(() => {
      throw new Error(BROKEN_OFF);
    });
    if (done) return;
    const blocks = (text + value).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) yield JSON.parse(block.slice(block.indexOf("data: ") + 6));
  }
}

const decoded = (base64) => new Int16Array(Uint8Array.from(atob(base64), (byte) => byte.charCodeAt(0)).buffer);

// Speaks utterances as their text is sent. Handlers: audio(samples), words(words), cut(reason) for one that ended early,
// done() after each utterance, error(error), and closed(isCutOff) when the gateway ends the connection, perhaps before
// the end of an utterance.
export class Session {
  #waiting = [];
  #undone = []; // utterances: fields, texts, isEnded
  #begun = 0; // utterances, with those that were repeated
  #first = 0; // of those that count
  #isOpened = false;

  constructor(handlers) {
    const url = new URL("v1/audio/speech/stream", document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    const key = sessionStorage.getItem(KEY);
    this.socket = new WebSocket(url, key ? ["speech", KEY_PROTOCOL + key] : []);
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => {
      this.#isOpened = true;
      this.#waiting.splice(0).forEach((message) => this.socket.send(message));
    };
    this.socket.onmessage = ({ data }) => this.#receive(data, handlers);
    this.socket.onclose = ({ code }) => this.#report(code, handlers);
  }

  begin(fields) {
    this.#undone.push({ fields, texts: [], isEnded: false });
    this.#begun++;
    const config = { stream_audio: true, ...asking("websocket", fields), response_format: "pcm" };
    this.#send({ type: "session.config", ...config });
  }

  add(text) {
    this.#undone.at(-1).texts.push(text);
    this.#send({ type: "input.text", text });
  }

  end() {
    this.#undone.at(-1).isEnded = true;
    this.#send({ type: "input.done" });
  }

  close() {
    this.socket.onmessage = this.socket.onclose = null;
    this.socket.close();
  }

  #send(message) {
    const text = JSON.stringify(message);
    if (this.socket.readyState === WebSocket.CONNECTING) this.#waiting.push(text);
    else this.socket.send(text);
  }

  #receive(data, handlers) {
    if (data instanceof ArrayBuffer) return handlers.audio(new Int16Array(data));
    const message = JSON.parse(data);
    if (message.utterance_index < this.#first) return;
    if (message.type === "error" && message.param === WORDS) return this.#repeat();
    if (message.type === "audio.words") handlers.words(message.words);
    // A connection that nobody uses is closed, and the next utterance opens another.
    if (message.type === "error" && message.code !== "idle") handlers.error(new ApiError(message));
    if (message.type === "audio.done" && (message.finish_reason ?? "stop") !== "stop") {
      handlers.cut(message.finish_reason);
    }
    if (message.type === "session.done") {
      this.#undone.shift();
      handlers.done();
    }
  }

  // Without words.
  #repeat() {
    this.#first = this.#begun;
    this.#send({ type: "input.cancel" });
    for (const { fields, texts, isEnded } of this.#undone.splice(0)) {
      stopAsking("websocket", fields);
      this.begin(fields);
      texts.forEach((text) => this.add(text));
      if (isEnded) this.end();
    }
  }

  #report(code, handlers) {
    const isCutOff = this.#undone.length > 0;
    const reason = this.#isOpened ? BROKEN_OFF : "The gateway cannot be reached, or refused the connection.";
    if (isCutOff && code !== POLICY_VIOLATION) handlers.error(new Error(reason));
    handlers.closed(isCutOff);
  }
}
