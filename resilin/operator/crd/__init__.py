"""The CustomResourceDefinition of ElasticJob, as data: `definition.definition()` is all of it."""
