// Builds ../page.html of the sources; with --test, the tests into build/.

import { createHash } from "node:crypto";
import { readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const here = new URL(".", import.meta.url);
const read = (path) => readFileSync(new URL(path, here), "utf8");
const common = { bundle: true, absWorkingDir: here.pathname, target: "es2022", charset: "utf8", logLevel: "warning" };

if (process.argv.includes("--test")) {
  rmSync(new URL("build", here), { recursive: true, force: true });
  const tests = readdirSync(new URL("test", here)).filter((name) => name.endsWith(".test.ts"));
  await build({ ...common, entryPoints: tests.map((name) => `test/${name}`), outdir: "build", outExtension: { ".js": ".mjs" }, format: "esm", platform: "node" });
} else {
  const bundled = async (options) => (await build({ ...common, minify: true, write: false, legalComments: "none", ...options })).outputFiles[0].text.trim();
  const script = await bundled({ entryPoints: ["src/main.ts"], format: "iife" });
  const style = await bundled({ stdin: { contents: read("node_modules/uplot/dist/uPlot.min.css") + read("style.css"), loader: "css" } });
  if (/<\/(script|style)|<!--/i.test(script + style)) throw new Error("the bundle would end its own element");
  const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
  const policy = `default-src 'none'; script-src ${hash(script)}; style-src ${hash(style)}; img-src data: blob:; base-uri 'none'; form-action 'none'`;
  const license = read("node_modules/uplot/LICENSE").trim();
  writeFileSync(
    new URL("../page.html", here),
    `<!doctype html><!-- replay of enn_trainer -->
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>Replay</title>
<link rel="icon" href="data:,">
<!-- The curves are drawn by uPlot:
${license}
-->
<style>${style}</style>
<script>${script}</script>
</head>
<body>
${read("shell.html")}<!-- blocks -->
</body>
</html>
`,
  );
  console.log(`page.html: ${Buffer.byteLength(script + style)} bytes of script and style`);
}
