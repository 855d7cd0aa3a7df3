// Writes the counts of a run where DJINN_JEST_REPORT names, in the form that tests/tally.py adds up.
const fs = require('node:fs');
const path = require('node:path');

module.exports = class {
  onRunComplete(_, found) {
    const report = process.env.DJINN_JEST_REPORT;
    if (!report) {
      return;
    }
    const { numTotalTests, numFailedTests, numRuntimeErrorTestSuites, numPendingTests } = found;
    const counts = `tests="${numTotalTests + numRuntimeErrorTestSuites}" failures="${numFailedTests}" errors="${numRuntimeErrorTestSuites}" skipped="${numPendingTests}"`;
    fs.mkdirSync(path.dirname(report), { recursive: true });
    fs.writeFileSync(report, `<testsuites><testsuite name="jest" ${counts}/></testsuites>\n`);
  }
};
