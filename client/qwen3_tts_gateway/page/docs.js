// Shows openapi.json: each operation, and the fields of its body.

const add = (parent, tag, text = "") => parent.appendChild(Object.assign(document.createElement(tag), { textContent: text }));

const spec = await (await fetch("openapi.json")).json();
const resolve = (schema) => (schema.$ref ? spec.components.schemas[schema.$ref.split("/").at(-1)] : schema);

function describe(schema) {
  if (schema.anyOf) return schema.anyOf.filter(({ type }) => type !== "null").map(describe).join(" or ");
  if (schema.enum) return schema.enum.join(", ");
  if (schema.items) return `array of ${describe(schema.items)}`;
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  const limits = Object.entries({ "≥": schema.minimum, "≤": schema.maximum }).filter(([, value]) => value !== undefined);
  return [schema.type ?? "any", ...limits.map((pair) => pair.join(" "))].join(" ");
}

function addFields(parent, schema) {
  const table = add(parent, "table");
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    const row = add(table, "tr");
    add(add(row, "td"), "code", name);
    add(row, "td", describe(field));
    add(row, "td", schema.required?.includes(name) ? "required" : String(field.default ?? ""));
  }
}

const main = document.querySelector("main");
for (const [path, operations] of Object.entries(spec.paths)) {
  for (const [method, { summary, requestBody }] of Object.entries(operations)) {
    const card = add(main, "section");
    card.className = "card";
    add(add(card, "div"), "code", `${method.toUpperCase()} ${path}`);
    add(card, "div", summary);
    for (const { schema } of Object.values(requestBody?.content ?? {})) addFields(card, resolve(schema));
  }
}
