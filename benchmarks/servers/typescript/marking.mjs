// What measured programs tell the driver beside the protocol: see benchmarks/driver/marks.py.
import { writeSync } from 'node:fs';

const fd = Number(process.env.BENCHMARK_MARKS);

export const began = number => writeSync(fd, `b${number}\n`);
export const ended = number => writeSync(fd, `e${number}\n`);
export const listening = port => writeSync(fd, `p${port}\n`);
export const row = number => `row ${number} was read, checked and written`;
export const say = text => ({ content: [{ type: 'text', text }] });

// Return when the request was cancelled, which these SDKs leave to their handlers to notice.
export const aborted = signal => new Promise(resolve => signal.addEventListener('abort', resolve));
