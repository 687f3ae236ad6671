"""Everything an operator can set, with its bounds; the source of flags, variables and the README's table.

One class tree is the only list: ``CONCHE_BATCHING__MAX_WAIT_MS``, ``--batching-max-wait-ms`` and one row of
the table all come from ``BatchingSettings.max_wait_ms``. Read once, by the command that starts the service;
everything else is handed the values it needs.
"""

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

ENV_PREFIX = "CONCHE_"
NESTED_DELIMITER = "__"
OFF = "none"
DEMO = "demo"

# Kubernetes writes these into every pod beside a Service called "conche"; they are not ours.
_SERVICE_LINK = re.compile(r"CONCHE_SERVICE_(HOST|PORT)(_\w+)?|CONCHE_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?")
# What `conche` sends to a server elsewhere; no setting of a service.
API_KEY_VARIABLE = "CONCHE_API_KEY"
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:\d{1,5})?|https?://\[[0-9a-f:]+\](:\d{1,5})?")
_SERVICE_LINK_PORT = re.compile(r"(tcp|udp|sctp)://")


class InvalidSettingsError(Exception):
    """The settings cannot be used; the message has one line a fault and names variable and flag."""


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


@dataclass(frozen=True, slots=True)
class _WordOr:
    """Of a number that a word may stand for: whatever else is written, one message says what may be.

    Attributes:
        ge, le: bounds of the number; no upper one if None.
    """

    ge: int
    le: int | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        (word,) = get_args(get_args(source)[0])
        bounds = f"at least {self.ge}" if self.le is None else f"from {self.ge} to {self.le}"

        def check(value: Any, read: Callable[[Any], Any]) -> Any:
            with suppress(ValidationError):
                number = read(value)
                # A NaN is in no range, either.
                if number == word or (number >= self.ge and (self.le is None or number <= self.le)):
                    return number
            raise ValueError(f"must be {word} or {bounds}")

        return core_schema.no_info_wrap_validator_function(check, handler(source))


class BatchingSettings(_Group):
    """How texts of different requests are put together for the model."""

    max_batch_tokens: Annotated[Literal["auto"] | int, _WordOr(ge=16)] = Field(
        default="auto",
        description="Tokens of one batch, padding counted by what it costs (all of it with ONNX Runtime, "
        "15 % with OpenVINO). `auto` takes the fewest "
        "from 512 to 2048 beyond which more gain less than a tenth: the first start with a model measures.",
    )
    max_batch_size: int = Field(default=256, ge=1, description="Texts of one batch.")
    max_wait_ms: float = Field(
        default=0.0,
        ge=0,
        le=1000,
        allow_inf_nan=False,
        description="How long the oldest text is held back for company; 0 never delays an idle service, "
        "and batches still form while the model is busy.",
    )
    max_queue_tokens: int = Field(
        default=131_072, ge=1, description="Tokens waiting per model; what does not fit is answered 429."
    )
    max_queue_items: int = Field(
        default=8192, ge=1, description="Texts waiting per model; what does not fit is answered 429."
    )
    max_queue_seconds: float = Field(
        default=30.0,
        gt=0,
        allow_inf_nan=False,
        description="What may wait per model is also no more than runs within this time at the pace of its "
        "recent large batches; what does not fit is answered 429.",
    )
    stall_timeout_seconds: float = Field(
        default=60.0,
        gt=0,
        allow_inf_nan=False,
        description="A model run without progress for this long counts as hung and turns /readyz red.",
    )

    def batch_tokens(self) -> int | None:
        """``max_batch_tokens``; None for `auto`."""
        return self.max_batch_tokens if isinstance(self.max_batch_tokens, int) else None


class LimitsSettings(_Group):
    """What one request may ask for."""

    max_inputs: int = Field(default=2048, ge=1, description="Texts of one request.")
    max_text_characters: int = Field(default=1_000_000, ge=1, description="Characters of one text.")
    max_total_characters: int = Field(
        default=4_000_000, ge=1, description="Characters of all texts of one request."
    )
    max_body_bytes: int = Field(
        default=16 * 1024 * 1024,
        ge=1024,
        description="Bytes of a request body; a larger one is refused (413).",
    )
    max_faq_entries: int = Field(
        default=10_000, ge=1, description="Entries that one request may write into a FAQ collection."
    )
    max_top_k: int = Field(default=100, ge=1, description="Hits one search may ask for, per query.")
    max_answer_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=1024,
        description="Bytes of the answer to a search or of a page of FAQ entries; a larger one is refused.",
    )
    max_snapshots: int = Field(
        default=20, ge=1, description="Snapshots kept in the data folder; one more is refused."
    )
    request_seconds: float = Field(
        default=300.0,
        gt=0,
        allow_inf_nan=False,
        description="A request not answered by then is answered 503. At least "
        "`CONCHE_BATCHING__STALL_TIMEOUT_SECONDS`: to lower this, lower that as well.",
    )

    header_seconds: float = Field(
        default=20.0,
        gt=0,
        le=3600,
        allow_inf_nan=False,
        description="A connection on which request line and headers have not come whole by then is closed, "
        "and so is one whose TLS handshake takes longer.",
    )
    body_seconds: float = Field(
        default=60.0,
        gt=0,
        allow_inf_nan=False,
        description="A body that has not come whole by then is answered 408; raise it for large bodies over "
        "slow lines.",
    )
    max_header_bytes: int = Field(
        default=32 * 1024,
        ge=1024,
        le=1024 * 1024,
        description="Bytes of URL and headers; more are refused (431).",
    )
    max_headers: int = Field(default=100, ge=10, le=10_000, description="Headers of one request.")
    max_connections: int = Field(
        default=2048, ge=1, description="Connections open at once; one more is answered 503."
    )
    max_connections_per_address: int = Field(
        default=0,
        ge=0,
        description="The same for one address; 0 for no such limit, as behind a proxy, from which all come.",
    )

    @model_validator(mode="after")
    def _one_text_fits_a_request(self) -> Self:
        if self.max_text_characters > self.max_total_characters:
            raise ValueError(
                f"CONCHE_LIMITS__MAX_TOTAL_CHARACTERS ({self.max_total_characters}) must be at least "
                f"CONCHE_LIMITS__MAX_TEXT_CHARACTERS ({self.max_text_characters})"
            )
        return self


class Settings(BaseSettings):
    """The whole configuration, checked across fields: a wrong one refuses to start rather than to serve."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=NESTED_DELIMITER,
        env_ignore_empty=True,  # compose files pass ${NAME:-}; empty means "not set"
        frozen=True,
        extra="forbid",
        validate_default=True,
    )

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on; 0.0.0.0 for all.")
    port: int = Field(default=8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    tls_cert: str = Field(
        default=OFF,
        min_length=1,
        description="Certificate chain in PEM, for https; read again when it changes. `none` for plain http.",
    )
    tls_key: str = Field(
        default=OFF, min_length=1, description="Its key in PEM, without a password; `none` for plain http."
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Worker processes that share the port, each a whole service with its own copy of the "
        "models; every limit holds for each. `auto` threads are divided among them.",
    )
    metrics_port: Annotated[Literal["none"] | int, _WordOr(ge=0, le=65535)] = Field(
        default="none",
        description="Port of its own for /metrics, which the other then lacks, on the same address; 0 takes "
        "a free one, `none` leaves it on the other.",
    )
    cors_origins: str = Field(
        default=OFF,
        min_length=1,
        description="Origins whose pages may use the service from a browser, as `https://shop.example`, "
        "separated by commas; `*` for any, `none` for no pages but its own.",
    )
    models_dir: Path = Field(default=Path("models"), description="Folder that holds the bundles.")
    embedding_bundle: str = Field(
        default="multilingual-e5-small-zh-en",
        min_length=1,
        description="Bundle behind /embed and /search: a name in the models folder, or a path; "
        "`none` for no such routes. Several, separated by commas: the first serves requests that name no "
        "`model`, and the FAQ.",
    )
    ner_bundle: str = Field(
        default="ner-zh-en",
        min_length=1,
        description="Bundle behind /ner: a name in the models folder, or a path; `none` for no such route. "
        "Several, separated by commas.",
    )
    classifier_bundle: str = Field(
        default=OFF,
        min_length=1,
        description="Bundle behind /predict and /classify: a name in the models folder, or a path; `none` "
        "for no such routes. Several, separated by commas.",
    )
    reranker_bundle: str = Field(
        default=OFF,
        min_length=1,
        description="Cross-encoder behind /rerank: a name in the models folder, or a path; `none` lets the "
        "embedding bundle rank. Several, separated by commas.",
    )
    admin: bool = Field(
        default=False,
        description="Whether /admin is served, where models are loaded and unloaded without a restart; it is "
        "open to whoever reaches the port, or, where there are API keys, has one with the scope `admin`.",
    )
    api_keys_file: str = Field(
        default=OFF,
        min_length=1,
        description="File of the API keys that requests need, as `conche keys add` writes it; a change is "
        "seen within a second. `none` for no keys: everything is open.",
    )
    metrics_need_key: bool = Field(
        default=False,
        description="Whether /metrics needs an API key as well, with the scope `read`, where there are keys.",
    )
    data_dir: Path = Field(
        default=Path(".conche"),
        description="Folder that holds what is written: FAQ collections, snapshots, measurements of models.",
    )
    faq_store: Literal["embedded", "milvus", "none"] = Field(
        default="embedded",
        description="Where FAQ collections are kept: in a file of the data folder, or in a Milvus server, "
        "which several machines share (install the extra `milvus`); `none` for no FAQ at all.",
    )
    milvus_uri: str = Field(
        default="http://127.0.0.1:19530",
        pattern=r"^https?://[^/@\s]+/?$",
        description="The Milvus server; `https` for TLS. Credentials go into the token.",
    )
    milvus_token: SecretStr = Field(
        default=SecretStr(OFF),
        min_length=1,
        description="User and password as `user:password`, or an API key; `none` for a server without. "
        "Better set as a variable than as a flag, which others can see.",
    )
    milvus_database: str = Field(
        default="default", min_length=1, description="The database within Milvus; it must be there."
    )
    milvus_prefix: str = Field(
        default="conche",
        pattern=r"^[A-Za-z][A-Za-z0-9]{0,31}$",
        description="What names in Milvus begin with: 1 to 32 letters and digits. Services with one prefix "
        "share their collections.",
    )
    milvus_timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        le=600,
        allow_inf_nan=False,
        description="How long one call to Milvus may take.",
    )
    faq_file: str = Field(
        default=DEMO,
        min_length=1,
        description="Questions and answers (JSONL, CSV or XLSX) that are brought into the collection "
        "`default` at the start; `demo` for the built-in set, `none` for none. Unless set, the built-in set "
        "fills an empty collection only. At later starts what changed in the file is written, and what left "
        "it is deleted unless it was changed since; nothing is deleted while lines of the file cannot be "
        "read.",
    )
    on_bundle_error: Literal["exit", "serve"] = Field(
        default="exit",
        description="When a bundle or the FAQ fails its checks: stop, or serve the rest with /readyz red.",
    )
    truncate: bool = Field(
        default=False,
        description="Whether /embed cuts over-long texts (and says so) when the request does not say; "
        "else it refuses them.",
    )
    empty_input: Literal["refuse", "read"] = Field(
        default="refuse",
        description="An empty or blank text among those of a request: `refuse` refuses the request and names "
        "the text; `read` answers with what the model makes of no words (the vector of prompt and special "
        "tokens, no entities, no hits) and lists such texts in `x-conche-empty`.",
    )
    input_ids: Literal["refuse", "model_vocab", "cl100k"] = Field(
        default="refuse",
        description="Token ids where texts are wanted: refused, or read as the embedding model's own, or as "
        "OpenAI's (what LangChain's OpenAIEmbeddings sends unless told not to).",
    )
    openai_vocabulary: str = Field(
        default=OFF,
        min_length=1,
        description="OpenAI's `cl100k_base.tiktoken`, needed to read its ids; `none` for none.",
    )
    threads: Annotated[Literal["auto"] | int, _WordOr(ge=1, le=1024)] = Field(
        default="auto",
        description="Threads that compute; `auto` follows affinity and the cgroup's CPU quota.",
    )
    streams: Annotated[Literal["auto"] | int, _WordOr(ge=1, le=64)] = Field(
        default="auto",
        description="Model runs at a time, which share the threads, from 1 to 64. `auto`: two where there "
        "are two threads; with OpenVINO one at rest and for one text at a time, and two while there are "
        "several (docs/workers.md).",
    )
    engine: Literal["auto", "onnxruntime", "openvino"] = Field(
        default="auto",
        description="What runs the models. `auto` takes the fastest installed one that passes the bundle's "
        "checks, as measured once (kept in the data folder); OpenVINO is the extra `openvino`.",
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="What models compute in. `auto` takes bfloat16 where the processor has it, it is faster, "
        "and the bundle's golden texts keep their entities and a cosine of at least 0.999.",
    )
    onnxruntime_providers: str = Field(
        default="CPUExecutionProvider",
        min_length=1,
        description="What ONNX Runtime computes on: its execution providers, separated by commas, the first "
        "that can being taken. Others than the CPU's need another build of it and are untested.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level logged."
    )
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto",
        description="Log lines for machines or for people; `auto` is text on a terminal, else JSON.",
    )
    log_probes: bool = Field(
        default=False, description="Whether successful probes and scrapes are logged too."
    )
    access_log_sample: float = Field(
        default=1.0,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Share of requests that get a log line, by chance; those that went wrong or were slow "
        "always get one.",
    )
    access_log_slow_ms: float = Field(
        default=1000.0,
        ge=0,
        allow_inf_nan=False,
        description="Milliseconds from which a request is slow, for the log.",
    )
    tracing: bool = Field(
        default=False,
        description="Whether spans of requests are sent to an OpenTelemetry collector (install the extra "
        "`tracing`); where to, under what name and how many is set by OpenTelemetry's own variables, as "
        "`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME` and `OTEL_TRACES_SAMPLER`.",
    )
    keep_alive_seconds: int = Field(
        default=65,
        ge=1,
        le=3600,
        description="How long an idle connection is kept; above the usual 60 s of load balancers.",
    )
    shutdown_delay_seconds: float = Field(
        default=0.0,
        ge=0,
        le=300,
        allow_inf_nan=False,
        description="After SIGTERM, how long requests are still accepted while /readyz is red already; not "
        "after Ctrl-C. The image sets 5.",
    )
    shutdown_grace_seconds: int = Field(
        default=25,
        ge=0,
        le=3600,
        description="After that, how long requests in work may take before they are cut off.",
    )
    recycle_seconds: Annotated[Literal["none"] | float, _WordOr(ge=0, le=3600)] = Field(
        default=10.0,
        description="When a model hangs, fails on every text or has lost its thread: how long /readyz is red "
        "before the process ends with exit code 70, for its supervisor to start it anew; `none` for never.",
    )
    loop_stall_seconds: Annotated[Literal["none"] | float, _WordOr(ge=1, le=86400)] = Field(
        default=60.0,
        description="When the event loop stands still, so that not even /livez answers: how long before the "
        "process ends, as above; `none` for never.",
    )
    startup_seconds: Annotated[Literal["none"] | float, _WordOr(ge=1, le=86400)] = Field(
        default=1800.0,
        description="How long a start may take before the process ends, as above: above what embedding the "
        "entries of `CONCHE_FAQ_FILE` takes, if they are many; `none` for any time.",
    )
    batching: BatchingSettings = BatchingSettings()
    limits: LimitsSettings = LimitsSettings()

    @field_validator("embedding_bundle", "ner_bundle", "classifier_bundle", "reranker_bundle")
    @classmethod
    def _lists_bundles(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",")]
        if not all(names) or (OFF in names and len(names) > 1) or len(set(names)) < len(names):
            raise ValueError("must be none, or one or more different names or paths, separated by commas")
        return value

    @field_validator(
        "api_keys_file",
        "data_dir",
        "faq_file",
        "models_dir",
        "openai_vocabulary",
        "tls_cert",
        "tls_key",
        "classifier_bundle",
        "embedding_bundle",
        "ner_bundle",
        "reranker_bundle",
    )
    @classmethod
    def _homes_are_known(cls, value: Path | str) -> Path | str:
        for name in str(value).split(","):  # a user id without an account has none, unless HOME says so
            try:
                Path(name.strip()).expanduser()
            except RuntimeError as error:
                raise ValueError(
                    f"{name.strip()}: the home folder is not known; set HOME, or write the path in full"
                ) from error
        return value

    @field_validator("onnxruntime_providers")
    @classmethod
    def _lists_providers(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",")]
        if not all(name.endswith("ExecutionProvider") for name in names) or len(set(names)) < len(names):
            raise ValueError("must be different names as CUDAExecutionProvider, separated by commas")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _lists_origins(cls, value: str) -> str:
        origins = [origin.strip() for origin in value.split(",")]
        if value.strip() not in {OFF, "*"} and not all(_ORIGIN.fullmatch(origin) for origin in origins):
            raise ValueError("must be none, *, or origins: scheme and host, as https://shop.example, no path")
        return value

    @model_validator(mode="after")
    def _tls_has_both_files(self) -> Self:
        if (self.tls_cert == OFF) != (self.tls_key == OFF):
            raise ValueError("CONCHE_TLS_CERT and CONCHE_TLS_KEY go together; one of them is none")
        return self

    @model_validator(mode="after")
    def _a_hang_is_found_before_the_caller_gives_up(self) -> Self:
        if self.limits.request_seconds < self.batching.stall_timeout_seconds:
            raise ValueError(
                f"CONCHE_LIMITS__REQUEST_SECONDS ({self.limits.request_seconds:g}) must be at least "
                f"CONCHE_BATCHING__STALL_TIMEOUT_SECONDS ({self.batching.stall_timeout_seconds:g}), "
                "or a hung model looks like slow requests"
            )
        return self

    @model_validator(mode="after")
    def _ids_can_be_read(self) -> Self:
        if self.input_ids == "cl100k" and self.openai_vocabulary == OFF:
            raise ValueError(
                "CONCHE_INPUT_IDS=cl100k needs CONCHE_OPENAI_VOCABULARY, the vocabulary that ids are of"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags before variables; a service-link ``CONCHE_PORT=tcp://...`` counts as not set."""
        del settings_cls, dotenv_settings, file_secret_settings

        def own_variables() -> dict[str, Any]:
            values = dict(env_settings())
            if _SERVICE_LINK_PORT.match(str(values.get("port", ""))):
                del values["port"]
            return values

        return (init_settings, own_variables)  # type: ignore[return-value]  # a source is any callable giving a dict

    def allowed_origins(self) -> frozenset[str]:
        """What ``cors_origins`` lists; nothing for `none`, `*` by itself for any."""
        if self.cors_origins == OFF:
            return frozenset()
        return frozenset(origin.strip() for origin in self.cors_origins.split(","))

    def bundle_names(self, setting: str) -> list[str]:
        """What ``embedding_bundle``, or another setting of bundles, lists, in order; nothing for `none`."""
        value: str = getattr(self, setting)
        return [] if value == OFF else [name.strip() for name in value.split(",")]

    def recycle_after_s(self) -> float | None:
        """``recycle_seconds``; None for `none`."""
        return self.recycle_seconds if isinstance(self.recycle_seconds, float) else None

    def loop_stall_s(self) -> float | None:
        """``loop_stall_seconds``; None for `none`."""
        return self.loop_stall_seconds if isinstance(self.loop_stall_seconds, float) else None

    def startup_s(self) -> float | None:
        """``startup_seconds``; None for `none`."""
        return self.startup_seconds if isinstance(self.startup_seconds, float) else None

    def providers(self) -> tuple[str, ...]:
        """What ``onnxruntime_providers`` lists, in order."""
        return tuple(name.strip() for name in self.onnxruntime_providers.split(","))

    def bundle_path(self, name: str) -> Path:
        """The folder of bundle ``name``: a path as it stands, a name inside the models folder."""
        return Path(name).expanduser() if "/" in name else self.models_path() / name

    def data_path(self) -> Path:
        """The data folder; it need not be there yet."""
        return self.data_dir.expanduser()

    def models_path(self) -> Path:
        """The models folder: as set; the default falls back to the one beside the code of a checkout."""
        checkout = Path(__file__).parents[1] / "models"
        if "models_dir" not in self.model_fields_set and not self.models_dir.is_dir() and checkout.is_dir():
            return checkout
        return self.models_dir.expanduser()


@dataclass(frozen=True, slots=True)
class Option:
    """One setting, flattened.

    Attributes:
        path: field names from the root, such as ("batching", "max_wait_ms").
        info: pydantic's description of the field.
    """

    path: tuple[str, ...]
    info: FieldInfo

    @property
    def variable(self) -> str:
        """The environment variable."""
        return ENV_PREFIX + NESTED_DELIMITER.join(self.path).upper()

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return "--" + "-".join(self.path).replace("_", "-")

    @property
    def name(self) -> str:
        """The flag as a Python name."""
        return "_".join(self.path)

    @property
    def default(self) -> str:
        """The default as an operator would write it."""
        default = self.info.get_default()
        if isinstance(default, bool):
            return str(default).lower()
        if isinstance(default, float) and default.is_integer():
            return str(int(default))
        if isinstance(default, SecretStr):
            return default.get_secret_value()
        return str(default)

    @property
    def kinds(self) -> tuple[str, ...]:
        """What may be written: the words, or kinds such as "integer"."""
        return tuple(_kinds(self.info.annotation))

    @property
    def values(self) -> str:
        """What may be written, with bounds, in Markdown."""
        return ", ".join(_kinds(self.info.annotation, "`{}`".format)) + _bounds(self.info)


def options(model: type[BaseModel] = Settings, path: tuple[str, ...] = ()) -> Iterator[Option]:
    """Every setting below ``model``, in the order of the classes."""
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from options(info.annotation, (*path, name))
        else:
            yield Option((*path, name), info)


def load_settings(
    flags: Mapping[tuple[str, ...], str] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Settings from flags (first) and the process's environment.

    Args:
        flags: values given on the command line, by the setting's path.
        environ: searched for misspelt variables; the process's environment by default.

    Raises:
        InvalidSettingsError: a value out of bounds, values that contradict each other, or an unknown
            ``CONCHE_`` variable: a typo that is ignored leaves its author believing that the limit is set.
    """
    faults = unknown_variables(os.environ if environ is None else environ)
    if faults:
        raise InvalidSettingsError("\n".join(faults))
    values: dict[str, Any] = {}
    for path, value in (flags or {}).items():
        level = values
        for name in path[:-1]:
            level = level.setdefault(name, {})
        level[path[-1]] = value
    try:
        return Settings(**values)
    except ValidationError as error:
        raise InvalidSettingsError("\n".join(_faults(error))) from error
    except SettingsError as error:
        raise InvalidSettingsError(str(error)) from error


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """One line for each ``CONCHE_`` variable that no setting reads, with the name it resembles most."""
    known = [option.variable for option in options()]
    lines = []
    for name in sorted(environ):
        if name.upper() in {*known, API_KEY_VARIABLE} or _SERVICE_LINK.fullmatch(name):
            continue
        if not name.upper().startswith(ENV_PREFIX):
            continue
        nearest = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.0)
        lines.append(f"{name}: no such setting; did you mean {nearest[0]}?")
    return lines


def markdown_table() -> str:
    """The README's table of settings, one row each."""
    rows = ["| Variable | Flag | Default | Values | Meaning |", "|---|---|---|---|---|"]
    for option in options():
        cells = (f"`{option.variable}`", f"`{option.flag}`", f"`{option.default}`", option.values)
        rows.append("| " + " | ".join((*cells, str(option.info.description))) + " |")
    return "\n".join(rows) + "\n"


def _faults(error: ValidationError) -> list[str]:
    by_path = {option.path: option for option in options()}
    lines: dict[str, list[str]] = {}
    for fault in error.errors(include_url=False):
        path = tuple(str(part) for part in fault["loc"])
        # A union adds the name of the branch it tried to the path.
        option = next((by_path[path[:n]] for n in range(len(path), 0, -1) if path[:n] in by_path), None)
        where = f"{option.variable} ({option.flag}): " if option else ""
        lines.setdefault(where, []).append(fault["msg"].removeprefix("Value error, "))
    return [where + "; ".join(messages) for where, messages in lines.items()]


_KINDS: Final = {int: "integer", float: "number", Path: "path", str: "text", SecretStr: "text"}


def _kinds(annotation: Any, word: Callable[[str], str] = str) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from map(word, get_args(annotation))
    elif annotation is bool:
        yield from map(word, ("true", "false"))
    elif get_args(annotation):
        for part in get_args(annotation):
            yield from _kinds(part, word)
    else:
        yield _KINDS[annotation]


def _bounds(info: FieldInfo) -> str:
    names = ("ge", "gt", "le")
    bounds = {
        name: bound
        for part in info.metadata
        for name in names
        if (bound := getattr(part, name, None)) is not None
    }
    low = f" from {bounds['ge']}" if "ge" in bounds else f" above {bounds['gt']}" if "gt" in bounds else ""
    high = f" to {bounds['le']}" if "le" in bounds else ""
    return low + high
