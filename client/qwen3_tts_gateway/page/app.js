import { call, getJson, saveKey, Session, speech } from "./api.js";
import { canStream, Player, RATE, WholePlayer } from "./player.js";
import { Recorder, wav } from "./recording.js";
import { Waveform } from "./waveform.js";
import { SpokenText } from "./words.js";

const $ = (id) => document.getElementById(id);
const FIGURES = ["first-audio", "first-sound", "length", "underruns"];
// Scripts that put no spaces between words: each character is complete.
const COMPLETE = /^.*[\s\p{P}\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]/su;
const waveform = new Waveform($("waveform"));
const spoken = new SpokenText($("spoken"));
let player;
let running; // the AbortController of the text that is spoken
let session; // in which text is typed
let isOpen = false; // the session's utterance, for more text
let isHeard = false;
let chunks = []; // of 16-bit samples
let startedMs = 0;

// Errors appear at the field that the server names until it is edited, otherwise below the form.

function clearError(field) {
  $(`${field.id}-error`)?.remove();
  field.removeAttribute("aria-invalid");
  field.removeAttribute("aria-errormessage");
}

function clearErrors() {
  $("alert").textContent = "";
  document.querySelectorAll("[aria-invalid]").forEach(clearError);
}

function fieldOf({ param, status }) {
  if (status !== 401) return param && document.querySelector(`[data-param="${CSS.escape(param)}"]`);
  $("access").hidden = false;
  return $("key");
}

function show(error) {
  const field = fieldOf(error);
  if (!field?.offsetParent) {
    $("alert").textContent = error.message;
    return;
  }
  clearError(field);
  const note = document.createElement("p");
  Object.assign(note, { className: "error", id: `${field.id}-error`, textContent: error.message, role: "alert" });
  field.closest(".field").append(note);
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-errormessage", note.id);
  field.focus();
}

const guarded = (action) => async (event) => {
  event?.preventDefault();
  clearErrors();
  await Promise.resolve(event).then(action).catch(show);
};

// Playback

const seconds = (samples) => `${(samples / RATE).toFixed(1)} s`;
const sinceStart = (delayMs = 0) => `${Math.round(performance.now() - startedMs + delayMs)} ms`;

function begin(text) {
  startedMs = performance.now();
  chunks = [];
  isHeard = true;
  waveform.clear();
  spoken.begin(text);
  FIGURES.forEach((id) => ($(id).textContent = "–"));
  $("status").textContent = canStream ? "Waiting for the first audio" : "Waiting for all of the speech";
  $("stop").disabled = false;
  $("download").disabled = true;
  player.begin();
}

function hear(samples) {
  if (!chunks.length) $("first-audio").textContent = sinceStart();
  chunks.push(samples);
  $("length").textContent = seconds(chunks.reduce((sum, chunk) => sum + chunk.length, 0));
  $("download").disabled = false;
  waveform.add(samples);
  player.send(samples);
}

function report({ type, played, underruns, stalled }) {
  if (type === "ready") $("status").textContent = "Press play to hear it";
  if (type === "started") {
    $("first-sound").textContent = sinceStart(player.latencyMs);
    $("status").textContent = "Speaking";
  }
  // Silence while somebody types is no underrun.
  $("underruns").textContent = session ? "–" : underruns ? `${underruns} (${seconds(stalled)})` : "0";
  waveform.played = played;
  waveform.draw();
  spoken.hear(played / RATE - player.latencyMs / 1000);
  if (type === "ended") rest(played ? `Heard ${seconds(played)}` : "");
}

function rest(status) {
  isHeard = false;
  spoken.hear(-1);
  $("status").textContent = status;
  $("stop").disabled = !session;
}

function stop() {
  running?.abort();
  session?.close();
  running = session = undefined;
  isOpen = false;
  if (isHeard) player.send("stop");
  if (isHeard) rest("Stopped");
  $("stop").disabled = true;
}

// Speech

function fields() {
  const value = (id) => (!$(id).closest("[hidden]") && $(id).value.trim()) || undefined;
  const [model, voice, language, instructions, seed] = ["model", "voice", "language", "style", "seed"].map(value);
  return { model, voice, language, instructions, seed: seed && Number(seed) };
}

async function speak() {
  stop();
  const { signal } = (running = new AbortController());
  const input = $("text").value;
  begin(input);
  try {
    for await (const { samples, words } of speech({ ...fields(), input }, signal)) {
      if (signal.aborted) continue;
      if (words) spoken.add(words);
      else hear(samples);
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  } finally {
    if (!signal.aborted) player.send("end");
  }
}

const CUTS = {
  incomplete: "The voice stopped before the end of the text.",
  length: "The speech was too long and was cut.",
};

function openSession() {
  const cut = (reason) => show(new Error(CUTS[reason] ?? "The voice got stuck, so the speech was cut."));
  const done = () => player.send("end");
  const closed = (isCutOff) => {
    session = undefined;
    isOpen = false;
    if (isCutOff) done();
    $("stop").disabled = !isHeard;
  };
  const words = (told) => spoken.add(told);
  return new Session({ audio: hear, words, cut, done, error: show, closed });
}

function send(text) {
  $("said").textContent += text;
  $("said").scrollTop = $("said").scrollHeight;
  session ??= openSession();
  if (!isOpen) {
    begin("");
    session.begin(fields());
  }
  isOpen = true;
  spoken.extend(text);
  session.add(text);
}

function type(event) {
  const [text] = (!event.isComposing && COMPLETE.exec($("words").value)) || [];
  if (!text) return;
  $("words").value = $("words").value.slice(text.length);
  send(text);
}

function finish() {
  if ($("words").value) send($("words").value);
  if (isOpen) session.end();
  isOpen = false;
  $("words").value = "";
  $("said").textContent += "\n";
}

function switchMode() {
  const isLive = $("live").checked;
  stop();
  $("whole").hidden = $("text").disabled = isLive;
  $("piecewise").hidden = !isLive;
  $("speak").textContent = isLive ? "End utterance" : "Speak";
  $("said").textContent = "";
  $(isLive ? "words" : "text").focus();
}

// Models and voices

const capitalised = (name) => name.replaceAll("_", " ").replace(/\b[a-z]/g, (letter) => letter.toUpperCase());
const option = (name) => new Option(capitalised(name), name);
const modelQuery = () => `?model=${encodeURIComponent($("model").value)}`;

async function loadModels() {
  const { data } = await getJson("v1/models");
  const models = data.filter(({ id, root }) => id === root);
  $("model").replaceChildren(...models.map(({ id }) => new Option(id)));
  $("model-choice").hidden = models.length < 2;
  $("access").hidden = true;
  await loadVoices();
}

async function loadVoices(selected) {
  const { task_type, voices, languages, cloning } = await getJson(`v1/audio/voices${modelQuery()}`);
  $("voice").replaceChildren(...voices.map(task_type === "Base" ? (name) => new Option(name) : option));
  if (selected) $("voice").value = selected;
  $("voice-choice").hidden = task_type === "VoiceDesign";
  $("language").replaceChildren(new Option("Detect", "auto"), ...languages.map(option));
  $("style-choice").hidden = task_type === "Base";
  $("style-label").textContent = task_type === "VoiceDesign" ? "Voice, in your words" : "Style";
  $("cloning").hidden = task_type !== "Base" || cloning === "off";
  $("forget").disabled = !voices.length;
}

let recorder;
let sample; // a Blob

async function record() {
  if (recorder) take(await recorder.stop());
  const started = recorder ? undefined : new Recorder();
  await started?.start();
  recorder = started;
  $("record").setAttribute("aria-pressed", Boolean(recorder));
  $("record").textContent = recorder ? "Stop recording" : "Record again";
}

function take(blob) {
  sample = blob;
  clearError($("sample"));
  URL.revokeObjectURL($("preview").src);
  $("preview").src = URL.createObjectURL(blob);
  $("preview").hidden = false;
}

async function clone() {
  if (!sample) throw Object.assign(new Error("Record a voice or choose a file."), { param: "audio_sample" });
  const name = $("name").value.trim();
  const texts = { name, ref_text: $("transcript").value.trim(), consent: "yes", model: $("model").value };
  const body = new FormData();
  Object.entries(texts).forEach(([field, text]) => body.append(field, text));
  body.append("audio_sample", sample, sample.name ?? "recording");
  await call("v1/audio/voices", { method: "POST", body });
  await loadVoices(name);
  $("status").textContent = `The voice ${name} is saved`;
}

async function forget() {
  const name = $("voice").value;
  await call(`v1/audio/voices/${encodeURIComponent(name)}${modelQuery()}`, { method: "DELETE" });
  await loadVoices();
  $("status").textContent = `The voice ${name} is deleted`;
}

function download() {
  const href = URL.createObjectURL(wav(chunks, RATE));
  Object.assign(document.createElement("a"), { href, download: "speech.wav" }).click();
  URL.revokeObjectURL(href);
}

$("access").onsubmit = guarded(() => (saveKey($("key").value), loadModels()));
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
document.oninput = ({ target }) => clearError(target);
document.onkeydown = (event) => {
  if (event.key === "Escape") stop();
  const isSubmit = event.key === "Enter" && (event.ctrlKey || event.metaKey);
  if (isSubmit && event.target === $("text")) $("speech").requestSubmit();
};
if (!canStream) {
  const reason = isSecureContext ? "This browser cannot" : "Without HTTPS, browsers do not";
  $("limits").textContent = `${reason} play speech as it arrives: you hear a text once all of its speech is here.`;
  $("limits").hidden = $("whole-speech").hidden = false;
  $("live").disabled = true;
  $("live").setAttribute("aria-describedby", "limits");
}
guarded(() => {
  player = canStream ? new Player(report) : new WholePlayer($("whole-speech"), report);
  return loadModels();
})();
