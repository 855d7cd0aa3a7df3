// TypeScript for jest, by the compiler that is here anyway. Types are checked by `npm run check`.
const ts = require('typescript');

const compilerOptions = {
  module: ts.ModuleKind.CommonJS,
  target: ts.ScriptTarget.ES2022,
  esModuleInterop: true,
  jsx: ts.JsxEmit.React,
  inlineSourceMap: true
};

module.exports = {
  process: (source, fileName) => ({
    code: ts.transpileModule(source, { compilerOptions, fileName }).outputText
  })
};
