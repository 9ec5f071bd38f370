// Texts to tokens, as whichtoken.datasets.text_pipeline makes them: the tables of characters are those of the Python that wrote
// the model, so that no browser's own version of Unicode enters.

const SPACE = 0, WORD = 1, APOSTROPHE = 2;
const SIGMA = 0x3a3, FINAL_SIGMA = "ς";
// Python's \s, which is not JavaScript's
const BREAK = /<br[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*\/?>/gi;

/** Whole numbers from their differences, written to base 36: "0 1a 5" is 0, 46, 51. */
function fromDifferences(text) {
  let sum = 0;
  return text === "" ? [] : text.split(" ").map((part) => (sum += parseInt(part, 36)));
}

/** What each character is, and what its lower case is. */
export function readCharacters({ words, apostrophes, lower }) {
  const kinds = new Uint8Array(0x110000), edges = fromDifferences(words), lowered = new Map();
  for (let k = 0; k < edges.length; k += 2) kinds.fill(WORD, edges[k], edges[k + 1]);
  for (const character of apostrophes) kinds[character.codePointAt(0)] = APOSTROPHE;
  for (const [first, count, step, shift] of lower.runs)
    for (let k = 0; k < count; k++) lowered.set(first + k * step, String.fromCodePoint(first + k * step + shift));
  for (const [code, text] of lower.others) lowered.set(code, text);
  return { kinds, lowered };
}

const isIgnorable = (character) => /\p{Case_Ignorable}/u.test(character);

/** Whether the sigma at a place ends a word: a cased letter stands before it and none after it, ignorable ones aside. */
function endsWord(characters, place) {
  let before = place - 1, after = place + 1;
  while (before >= 0 && isIgnorable(characters[before])) before--;
  while (after < characters.length && isIgnorable(characters[after])) after++;
  return before >= 0 && /\p{Cased}/u.test(characters[before]) && !(after < characters.length && /\p{Cased}/u.test(characters[after]));
}

/** Lower-case words with the places text.slice(start, stop) that they come from. */
export function splitWords(text, { kinds, lowered }) {
  const plain = text.includes("<") ? text.replace(BREAK, (tag) => " ".repeat(tag.length)) : text;
  const characters = [...plain], words = [];
  let word = "", start = 0, stop = 0, unit = 0;
  const end = () => { if (word) words.push({ word, start, stop }); word = ""; };
  characters.forEach((character, place) => {
    const code = character.codePointAt(0);
    const lower = code === SIGMA && endsWord(characters, place) ? FINAL_SIGMA : lowered.get(code) ?? character;
    for (const part of lower) {
      const kind = kinds[part.codePointAt(0)];
      if (kind === SPACE) end();
      else if (kind === WORD) { if (!word) start = unit; word += part; stop = unit + character.length; }
    }
    unit += character.length;
  });
  end();
  return words;
}

/** A stemmer that counts characters, not UTF-16 units: those beyond U+FFFF are private ones while it runs. */
export function stemWith(stemmer) {
  return (word) => {
    const rare = [...word].filter((character) => character.length > 1);
    if (!rare.length) return stemmer.stemWord(word);
    const distinct = [...new Set(rare)], coded = [...word].map((part) => part.length > 1 ? String.fromCharCode(0xe000 + distinct.indexOf(part)) : part);
    return stemmer.stemWord(coded.join("")).replace(/[\ue000-\uf8ff]/g, (code) => distinct[code.charCodeAt(0) - 0xe000]);
  };
}

/** What BERT's normalization makes of a character: no accents, ideographs as words of their own, syllables of Hangul in parts. */
function normalizeWith({ spaced, replaced }) {
  const known = new Map(replaced);
  for (const [first, count] of spaced) for (let code = first; code < first + count; code++) known.set(code, ` ${String.fromCodePoint(code)} `);
  return (character) => {
    const code = character.codePointAt(0);
    return known.get(code) ?? (code >= 0xac00 && code < 0xd7a4 ? character.normalize("NFD") : character);
  };
}

/** Pieces of a word, the longest first that the vocabulary has; the unknown piece if it cannot be spelled (WordPiece). */
export function spellWith(settings) {
  const { pieces, unknown, keepUnknown, longest } = settings, known = new Set(pieces), normalize = normalizeWith(settings);
  const clean = (word) => [...word].map(normalize).join("");
  const spellOne = (word) => {
    const characters = [...word], found = [];
    if (characters.length > longest) return [unknown];
    for (let start = 0, stop; start < characters.length; start = stop) {
      for (stop = characters.length; stop > start; stop--) {
        const piece = (start ? "##" : "") + characters.slice(start, stop).join("");
        if (known.has(piece)) { found.push(piece); break; }
      }
      if (stop === start) return [unknown];
    }
    return found;
  };
  return (word) => clean(word).split(" ").filter(Boolean).flatMap(spellOne).filter((piece) => keepUnknown || piece !== unknown);
}

/** A function from a text to its tokens with their places. */
export function makeTokenizer(settings, stemmer) {
  const characters = readCharacters(settings.characters), stopped = new Set(settings.stopped);
  const stem = stemmer ? stemWith(stemmer) : (word) => word;
  const spell = settings.pieces ? spellWith(settings.pieces) : (word) => [word];
  const known = new Map();  // tokens of the words so far
  const tokensOf = (word) => {
    if (!known.has(word)) known.set(word, stopped.has(word) ? [] : spell(stem(word)));
    return known.get(word);
  };
  return (text) => {
    const words = splitWords(text, characters);
    return { words, tokens: words.flatMap(({ word, start, stop }) => tokensOf(word).map((name) => ({ name, start, stop }))) };
  };
}
