// A journal: what happened inside a server's process, for those outside to read.
import { appendFileSync } from 'node:fs';

// One write each, so that a reader never sees half of a line.
export const note = line => appendFileSync(process.env.JOURNAL, `${line}\n`);

// A process that is ended by a signal does not get here.
process.on('exit', () => note('server ended'));
