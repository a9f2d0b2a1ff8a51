// Completions: the server's suggestions for the arguments of a prompt or a template.

import { ask, el } from "./elements.js";
import { server } from "./server.js";

/** Show suggestions in each text field of a form. `kind` is prompt or template. */
export function completed(form, kind, name) {
  if (!server.completions) return;
  form.element.querySelectorAll("textarea").forEach((control, number) => {
    const field = el("input", { type: "text", name: control.name, value: control.value, autocomplete: "off" });
    const offered = el("datalist", { id: `offered-${kind}-${number}` });
    field.setAttribute("list", offered.id);
    let latest = 0;
    field.addEventListener("input", async () => {
      control.value = field.value;
      const mine = (latest += 1);
      try {
        const { values } = await ask({ do: "complete", kind, name, argument: control.name, value: field.value });
        if (mine === latest) offered.replaceChildren(...values.map((value) => el("option", { value })));
      } catch {
        offered.replaceChildren(); // without suggestions the field still works
      }
    });
    control.hidden = true;
    control.after(field, offered);
  });
}
