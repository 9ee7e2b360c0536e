// The text of an utterance. Marks the word that is heard.

export class SpokenText {
  constructor(element) {
    this.element = element;
    this.mark = document.createElement("mark");
    this.begin("");
  }

  begin(text) {
    this.characters = [...text]; // offsets of words are those of code points
    this.words = [];
    this.current = undefined;
    this.element.hidden = true;
    this.element.replaceChildren();
  }

  extend(text) {
    this.characters.push(...text);
    this.#paint();
  }

  // Objects of speech.audio.words; a later one replaces an earlier one.
  add(words) {
    words.forEach((word) => (this.words[word.index] = word));
    this.element.hidden = false;
    this.#paint();
  }

  // Seconds of the utterance that have been heard.
  hear(now) {
    const word = this.words.findLast((word) => word && word.start !== null && word.start <= now);
    const current = word && now < (word.end === undefined ? Infinity : word.end) ? word.index : undefined;
    if (current === this.current) return;
    this.current = current;
    this.#paint();
  }

  #paint() {
    const word = this.words[this.current];
    const part = (from, to) => this.characters.slice(from, to).join("");
    if (!word) return this.element.replaceChildren(part(0));
    this.mark.textContent = part(word.first, word.last + 1);
    this.element.replaceChildren(part(0, word.first), this.mark, part(word.last + 1));
    this.element.scrollTop = this.mark.offsetTop - this.element.offsetTop - this.element.clientHeight / 2;
  }
}
