// Of all JavaScript of the project: tests/unit/test_lint.sh runs it from the top.
import js from "@eslint/js";
import globals from "globals";

export default [
  { ignores: ["build/", "**/node_modules/"] },
  js.configs.recommended,
  {
    languageOptions: { globals: globals.node },
    rules: {
      eqeqeq: "error",
      "no-unused-vars": ["error", { caughtErrors: "none", ignoreRestSiblings: true }],
      "no-var": "error",
      "prefer-const": ["error", { destructuring: "all" }],
      // Strangers" bytes are looked for on purpose.
      "no-control-regex": "off"
    }
  },
  {
    files: ["clients/explorer/page/**", "clients/explorer/test/*.test.js"],
    languageOptions: { globals: globals.browser }
  }
];
