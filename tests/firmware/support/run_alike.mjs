// Runs the test functions of one file under MicroPython. Arguments: micropython.mjs, firmware/, tests/firmware/, the file.
// Exit codes of scripts are lost in this build, so the last line says PASS and how many; the caller looks for it.
import fs from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const [build, firmware, tests, file] = process.argv.slice(2);
const { loadMicroPython } = await import(pathToFileURL(path.resolve(build)));
const python = await loadMicroPython({ heapsize: 8 << 20, linebuffer: true, stdout: (line) => console.log(line) });

function copy(from, to) {
  python.FS.mkdir(to);
  for (const entry of fs.readdirSync(from, { withFileTypes: true })) {
    if (entry.isFile() && /\.(py|txt)$/.test(entry.name)) {
      python.FS.writeFile(`${to}/${entry.name}`, fs.readFileSync(path.join(from, entry.name)));
    }
  }
}

copy(path.join(firmware, 'powernode'), '/powernode');
for (const folder of ['support', 'golden', 'alike']) copy(path.join(tests, folder), `/${folder}`);
python.runPython(`
import sys
sys.path[:0] = ["/", "/support", "/alike"]
def run(name):
    module = __import__(name)
    # Under CPython a module knows its whole path; here, where it was found.
    names = [n for n in dir(module) if n.startswith("test_")]
    for n in names:
        try:
            getattr(module, n)()
        except BaseException as error:
            print("FAIL", n)
            sys.print_exception(error)
            return
    print("PASS", len(names), sys.implementation.name)
run("${path.basename(file, '.py')}")
`);
