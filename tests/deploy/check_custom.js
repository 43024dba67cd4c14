// Validates custom resources against the schemas of their definitions. stdin: a JSON list of objects; argv[2]: node_modules.
// Prints one line a fault; a kind without a schema is a fault, too.
const path = require("path");
const packages = {
  "cert-manager.io": "cert-manager", "gateway.networking.k8s.io": "gateway-api", "keda.sh": "keda",
  "monitoring.coreos.com": "prometheus-operator",
};
let text = "";
process.stdin.on("data", (part) => (text += part)).on("end", () => {
  for (const object of JSON.parse(text)) {
    const [group, version] = object.apiVersion.split("/");
    const name = `${object.kind} ${object.metadata.name}`;
    try {
      const folder = path.join(process.argv[2], "@kubernetes-models", packages[group], group, version, object.kind);
      const Model = require(folder)[object.kind];
      new Model(object).validate();
    } catch (error) {
      console.log(`${name}: ${error.message}`);
    }
  }
});
