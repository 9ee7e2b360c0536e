import { call, getJson, saveKey, Session, speech } from "./api.js";
import { Player, RATE } from "./player.js";
import { Recorder, wav } from "./recording.js";
import { Waveform } from "./waveform.js";

const $ = (id) => document.getElementById(id);
const waveform = new Waveform($("waveform"));
// Letters of scripts that put no spaces between words are complete at once.
const COMPLETE = /^.*[\s\p{P}\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]/su;
let player;
let running; // the AbortController of the speech that is heard
let session; // while text is typed
let isOpen = false; // an utterance of the session, for more text
let isHeard = false;
let chunks = [];
let startedMs = 0;

// Errors: at the field that the server names, otherwise on top.

function clearErrors() {
  $("alert").textContent = "";
  document.querySelectorAll("p.error:not([id=alert])").forEach((note) => note.remove());
  document.querySelectorAll("[aria-invalid]").forEach((field) => field.removeAttribute("aria-invalid"));
}

function show(error) {
  if (error.name === "AbortError") return;
  if (error.status === 401) {
    $("access").hidden = false;
    $("key").focus();
  }
  const field = error.param && document.querySelector(`[data-param="${CSS.escape(error.param)}"]`);
  if (!field || !field.offsetParent) {
    $("alert").textContent = error.message;
    return;
  }
  const note = Object.assign(document.createElement("p"), {
    className: "error",
    id: `${field.id}-error`,
    textContent: error.message,
  });
  note.setAttribute("role", "alert");
  (field.closest("label") ?? field).after(note);
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-errormessage", note.id);
  field.focus();
}

const guarded = (action) => async (event) => {
  event?.preventDefault();
  clearErrors();
  try {
    await action(event);
  } catch (error) {
    show(error);
  }
};

// Playback

const seconds = (samples) => `${(samples / RATE).toFixed(1)} s`;
const milliseconds = (ms) => `${Math.round(ms)} ms`;
const received = () => chunks.reduce((sum, chunk) => sum + chunk.length, 0);

async function begin() {
  player ??= new Player(report);
  startedMs = performance.now();
  chunks = [];
  isHeard = true;
  waveform.clear();
  for (const id of ["first-audio", "first-sound", "length", "underruns"]) $(id).textContent = "–";
  $("status").textContent = "Waiting for the first audio";
  $("stop").disabled = false;
  $("download").disabled = true;
  await player.begin();
}

function hear(samples) {
  if (!chunks.length) $("first-audio").textContent = milliseconds(performance.now() - startedMs);
  chunks.push(samples);
  $("length").textContent = seconds(received());
  waveform.add(samples);
  player.add(samples);
  $("download").disabled = false;
}

function report({ type, played, underruns, stalled }) {
  if (type === "started") {
    $("first-sound").textContent = milliseconds(performance.now() - startedMs + player.latencyMs);
    $("status").textContent = "Speaking";
  }
  waveform.played = played;
  waveform.draw();
  // Silence while somebody types is no underrun.
  $("underruns").textContent = session ? "–" : underruns ? `${underruns} (${seconds(stalled)})` : "0";
  if (type === "ended") rest(`Heard ${seconds(played)}`);
}

function rest(status) {
  isHeard = false;
  $("status").textContent = status;
  $("stop").disabled = !session;
}

function stop() {
  running?.abort();
  session?.close();
  running = session = undefined;
  isOpen = false;
  if (isHeard) player?.stop();
  $("stop").disabled = true;
}

// Speech

function fields() {
  const seed = $("seed").value.trim();
  const shown = (id) => (!$(id).closest("[hidden]") && $(id).value.trim()) || undefined;
  return {
    model: shown("model"),
    voice: shown("voice"),
    language: shown("language"),
    instructions: shown("style"),
    seed: seed ? Number(seed) : undefined,
  };
}

async function speak() {
  stop();
  const { signal } = (running = new AbortController());
  try {
    await begin();
    for await (const samples of speech({ ...fields(), input: $("text").value }, signal)) {
      if (signal.aborted) return;
      hear(samples);
    }
    player.end();
  } catch (error) {
    if (signal.aborted) return;
    if (isHeard && chunks.length) player.end();
    else rest("");
    throw chunks.length ? new Error("The speech broke off: the rest did not arrive.") : error;
  }
}

function open() {
  const mine = new Session(fields(), {
    audio: hear,
    done: () => player.end(),
    error: show,
    closed: () => session === mine && ((session = undefined), (isOpen = false)),
  });
  return mine;
}

async function send(text) {
  $("said").textContent += text;
  $("said").scrollTop = $("said").scrollHeight;
  session ??= open();
  if (!isOpen) {
    isOpen = true;
    session.add(text);
    await begin();
  } else session.add(text);
}

async function type(event) {
  if (event.isComposing) return;
  const [text] = COMPLETE.exec($("words").value) ?? [];
  if (!text) return;
  $("words").value = $("words").value.slice(text.length);
  await send(text);
}

async function finish() {
  const text = $("words").value;
  $("words").value = "";
  if (text) await send(text);
  if (isOpen) session.end();
  isOpen = false;
  $("said").textContent += "\n";
}

function switchMode() {
  stop();
  const isLive = $("live").checked;
  $("whole").hidden = isLive;
  $("piecewise").hidden = !isLive;
  $("text").disabled = isLive;
  $("speak").textContent = isLive ? "End utterance" : "Speak";
  $("said").textContent = "";
  $(isLive ? "words" : "text").focus();
}

// Models and voices

const options = (names) => names.map((name) => new Option(name.replaceAll("_", " "), name));

async function loadModels() {
  const { data } = await getJson("v1/models");
  const models = data.filter(({ id, root }) => id === root).map(({ id }) => id);
  $("model").replaceChildren(...models.map((id) => new Option(id)));
  $("model-choice").hidden = models.length < 2;
  await loadVoices();
  $("access").hidden = true;
}

async function loadVoices(selected) {
  const listed = await getJson(`v1/audio/voices?model=${encodeURIComponent($("model").value)}`);
  const task = listed.task_type;
  $("voice").replaceChildren(...options(listed.voices));
  if (selected) $("voice").value = selected;
  $("voice-choice").hidden = task === "VoiceDesign";
  $("language").replaceChildren(new Option("detect", "auto"), ...options(listed.languages));
  $("style-choice").hidden = task === "Base";
  $("style-label").textContent = task === "VoiceDesign" ? "Voice, in your words" : "Style";
  $("cloning").hidden = task !== "Base" || listed.cloning === "off";
  $("forget").disabled = !listed.voices.length;
}

let recorder;
let recording; // a Blob

async function record() {
  if (recorder) {
    take(await recorder.stop());
    recorder = undefined;
  } else {
    const started = new Recorder();
    await started.start();
    recorder = started;
  }
  $("record").setAttribute("aria-pressed", Boolean(recorder));
  $("record").textContent = recorder ? "Stop recording" : "Record again";
}

function take(sample) {
  recording = sample;
  URL.revokeObjectURL($("preview").src);
  $("preview").src = URL.createObjectURL(sample);
  $("preview").hidden = false;
}

async function clone() {
  if (!recording) throw Object.assign(new Error("Record a voice or choose a file."), { param: "audio_sample" });
  const name = $("name").value.trim();
  const form = new FormData();
  const texts = { name, ref_text: $("transcript").value.trim(), consent: "yes", model: $("model").value };
  for (const [field, text] of Object.entries(texts)) form.append(field, text);
  form.append("audio_sample", recording, recording.name ?? "recording");
  await call("v1/audio/voices", { method: "POST", body: form });
  await loadVoices(name);
  $("status").textContent = `The voice ${name} is saved`;
}

async function forget() {
  const name = $("voice").value;
  const query = `?model=${encodeURIComponent($("model").value)}`;
  await call(`v1/audio/voices/${encodeURIComponent(name)}${query}`, { method: "DELETE" });
  await loadVoices();
  $("status").textContent = `The voice ${name} is deleted`;
}

function download() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(wav(chunks, RATE));
  link.download = "speech.wav";
  link.click();
  URL.revokeObjectURL(link.href);
}

const useKey = () => (saveKey($("key").value), loadModels());

$("access").onsubmit = guarded(useKey);
$("speech").onsubmit = guarded(() => ($("live").checked ? finish() : speak()));
$("stop").onclick = stop;
$("download").onclick = download;
$("live").onchange = guarded(switchMode);
$("words").oninput = $("words").oncompositionend = guarded(type);
$("model").onchange = guarded(() => loadVoices());
$("record").onclick = guarded(record);
$("sample").onchange = () => $("sample").files.length && take($("sample").files[0]);
$("clone").onsubmit = guarded(clone);
$("forget").onclick = guarded(forget);
document.onkeydown = (event) => {
  if (event.key === "Escape") stop();
  if (event.key === "Enter" && event.ctrlKey && event.target === $("text")) $("speech").requestSubmit();
};
guarded(loadModels)();
