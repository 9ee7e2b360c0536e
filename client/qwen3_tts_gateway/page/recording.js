// The microphone, and files of samples.

export class Recorder {
  async start() {
    if (!navigator.mediaDevices) throw new Error("The microphone needs HTTPS or localhost.");
    this.stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    this.recorder = new MediaRecorder(this.stream);
    this.parts = [];
    this.recorder.ondataavailable = ({ data }) => this.parts.push(data);
    this.recorder.start();
  }

  stop() {
    return new Promise((resolve) => {
      this.recorder.onstop = () => {
        this.stream.getTracks().forEach((track) => track.stop());
        resolve(new Blob(this.parts, { type: this.recorder.mimeType }));
      };
      this.recorder.stop();
    });
  }
}

export function wav(chunks, rate) {
  const bytes = chunks.reduce((sum, chunk) => sum + chunk.byteLength, 0);
  const [riff, wave, format, data] = [0x46464952, 0x45564157, 0x20746d66, 0x61746164];
  const [monoPcm, sixteenBits] = [0x00010001, 0x00100002];
  const head = [riff, 36 + bytes, wave, format, 16, monoPcm, rate, 2 * rate, sixteenBits, data, bytes];
  return new Blob([Uint32Array.from(head), ...chunks], { type: "audio/wav" });
}
