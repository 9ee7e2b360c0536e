// The gateway's endpoints. Errors carry `param`, the name of the wrong field, and `status`.

const KEY = "qwen3-tts-key";
const KEY_PROTOCOL = "openai-insecure-api-key.";

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
  const response = await fetch(path, { ...options, headers: { ...headers, ...access } });
  if (response.ok) return response;
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
    const { done, value } = await reader.read();
    if (done) return;
    const bytes = new Uint8Array(rest.length + value.length);
    bytes.set(rest);
    bytes.set(value, rest.length);
    const even = bytes.length - (bytes.length % 2);
    rest = bytes.slice(even);
    if (even) yield new Int16Array(bytes.buffer, 0, even / 2);
  }
}

// Speaks text as it is sent. Handlers: audio(samples), done() after each utterance, error(error), closed().
export class Session {
  #waiting = [];

  constructor(fields, handlers) {
    const url = new URL("v1/audio/speech/stream", document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    const key = sessionStorage.getItem(KEY);
    this.socket = new WebSocket(url, key ? ["speech", KEY_PROTOCOL + key] : []);
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => this.#waiting.splice(0).forEach((message) => this.socket.send(message));
    this.socket.onmessage = ({ data }) => this.#receive(data, handlers);
    this.socket.onerror = () => handlers.error(new Error("The gateway refused or lost the connection."));
    this.socket.onclose = () => handlers.closed();
    this.#send({ type: "session.config", stream_audio: true, ...fields, response_format: "pcm" });
  }

  add(text) {
    this.#send({ type: "input.text", text });
  }

  end() {
    this.#send({ type: "input.done" });
  }

  close() {
    this.socket.onmessage = this.socket.onerror = this.socket.onclose = null;
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
    if (message.type === "error") handlers.error(new ApiError(message));
    if (message.type === "session.done") handlers.done();
  }
}
