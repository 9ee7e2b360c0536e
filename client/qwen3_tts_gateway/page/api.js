// The gateway's endpoints. Errors carry `param`, the name of the wrong field, and `status`.

const KEY = "qwen3-tts-key";
const KEY_PROTOCOL = "openai-insecure-api-key.";
const BROKEN_OFF = "The connection broke off before the end of the speech.";
const POLICY_VIOLATION = 1008; // the gateway has sent an error

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

// Yields Int16Arrays as they arrive; aborting the signal cancels the speech on the server.
export async function* speech(fields, signal) {
  const response = await call("v1/audio/speech", {
    method: "POST",
    signal,
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...fields, response_format: "pcm" }),
  });
  let rest = new Uint8Array();
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read().catch(() => {
      throw new Error(BROKEN_OFF);
    });
    if (done) return;
    const bytes = new Uint8Array(rest.length + value.length);
    bytes.set(rest);
    bytes.set(value, rest.length);
    const even = bytes.length - (bytes.length % 2);
    rest = bytes.slice(even);
    if (even) yield new Int16Array(bytes.buffer, 0, even / 2);
  }
}

// Speaks utterances as their text is sent. Handlers: audio(samples), cut(reason) for one that ended early, done() after
// each utterance, error(error), and closed(isCutOff) when the gateway ends the connection, perhaps before the end of an
// utterance.
export class Session {
  #waiting = [];
  #undone = 0; // utterances
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
    this.#undone++;
    this.#send({ type: "session.config", stream_audio: true, ...fields, response_format: "pcm" });
  }

  add(text) {
    this.#send({ type: "input.text", text });
  }

  end() {
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
    // A connection that nobody uses is closed, and the next utterance opens another.
    if (message.type === "error" && message.code !== "idle") handlers.error(new ApiError(message));
    if (message.type === "audio.done" && (message.finish_reason ?? "stop") !== "stop") {
      handlers.cut(message.finish_reason);
    }
    if (message.type === "session.done") {
      this.#undone--;
      handlers.done();
    }
  }

  #report(code, handlers) {
    const isCutOff = this.#undone > 0;
    const reason = this.#isOpened ? BROKEN_OFF : "The gateway cannot be reached, or refused the connection.";
    if (isCutOff && code !== POLICY_VIOLATION) handlers.error(new Error(reason));
    handlers.closed(isCutOff);
  }
}
