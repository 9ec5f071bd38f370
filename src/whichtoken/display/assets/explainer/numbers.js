// Numbers as a page holds them.
const BASE64 = new Map([..."ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"].map((sign, number) => [sign.charCodeAt(0), number]));

/** Bytes from base64. */
function readBytes(text) {
  const length = text.replace(/=+$/, "").length, bytes = new Uint8Array(Math.floor(length * 3 / 4));
  for (let from = 0, to = 0; from < length; from += 4) {
    let bits = 0;
    for (let k = from; k < from + 4; k++) bits = bits << 6 | (BASE64.get(text.charCodeAt(k)) ?? 0);
    for (let shift = 16; shift >= 0 && to < bytes.length; shift -= 8) bytes[to++] = bits >> shift;
  }
  return bytes;
}

/** Numbers from base64, little endian, in double or single precision. */
export function readNumbers({ bits, base64 }) {
  const bytes = readBytes(base64), view = new DataView(bytes.buffer), size = bits / 8, numbers = new Float64Array(bytes.length / size);
  for (let k = 0; k < numbers.length; k++) numbers[k] = bits === 64 ? view.getFloat64(size * k, true) : view.getFloat32(size * k, true);
  return numbers;
}
