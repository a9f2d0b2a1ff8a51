// URI templates (RFC 6570): the parts that servers use.

const MOST_VARIABLES = 50;
const EXPRESSION = /\{([+#./;?&]?)([^{}]*)\}/g;
const SIGNS = { // for each operator: the signs before and between the values of an expression
  "": ["", ","], "+": ["", ","], "#": ["#", ","], ".": [".", "."],
  "/": ["/", "/"], ";": [";", ";"], "?": ["?", "&"], "&": ["&", "&"],
};

const plain = (variable) => variable.replace(/[*]$|:\d+$/, "");
const namesOf = (variables) => variables.split(",").map(plain);

export const variablesOf = (template) =>
  [...String(template).matchAll(EXPRESSION)].flatMap(([, , variables]) => namesOf(variables)).slice(0, MOST_VARIABLES);

/** The URI that results from a template with the given values. */
export const expanded = (template, given) =>
  String(template).replace(EXPRESSION, (_, operator, variables) => part(operator, namesOf(variables), given));

function part(operator, names, given) {
  const [first, between] = SIGNS[operator];
  const encoded = operator === "+" || operator === "#" ? encodeURI : encodeURIComponent;
  const isNamed = operator === ";" || operator === "?" || operator === "&";
  const values = names
    .filter((name) => given[name] !== undefined && given[name] !== "")
    .map((name) => (isNamed ? `${name}=` : "") + encoded(given[name]));
  return values.length ? first + values.join(between) : "";
}
