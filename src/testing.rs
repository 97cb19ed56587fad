//! The door for tests and benchmarks: what they use of the rooms, and nothing else. It is no interface: it changes as they do.

#![allow(missing_docs, reason = "each item has its documentation in its room")]

pub mod app {
    pub use crate::app::App;
}
pub mod cache {
    pub use crate::cache::{
        Backlog, ChangeKind, Config, Delta, IndexBuilder, Packer, Packing, Phase, Reader, ReflectorStats,
        Snapshot, Summary, Writer, cache,
    };
}
pub mod config {
    pub use crate::config::{
        CachePacking, ConfigLayers, Count, DeclaredQueues, ElectionTiming, General, GeneralSettings, Given,
        GivenBy, HostName, InitialList, Limits, Listen, Log, OnDemand, Origin, PassThrough, Proxied,
        QueueElection, QueueMode, Serve, ServeSettings, Size, Span, UpstreamSource, Value, WatchEntry,
        WatchSpec, Watches,
    };
}
pub mod encode {
    pub use crate::encode::{
        ClientFrame, Encoder, Format, FrameParser, Frames, Kubernetes, ListEncoder, ListFormat,
    };
}
pub mod hub {
    pub use crate::hub::{
        Begin, Config, Delivery, Event, EventKind, Form, Hub, Informer, InformerSpec, Join, Live, LivePlace,
        LivePosition, LiveSubscriber, Member, Payload, RelatedInformer, ResetReason, Resumable, ResumeToken,
        Round, Scope, Selection, Stage, StartAt, Subscriber, Subscription, Told,
    };
}
pub mod k8s {
    pub use crate::k8s::{
        BuiltIn, Condition, DecodeError, DecodeOptions, Decoder, DropPaths, FieldMask, FieldPath,
        FieldSelector, INITIAL_EVENTS_END, IndexPath, IndexPaths, Key, LAST_APPLIED, LabelSelector,
        LineSplitter, Link, LinkBy, Links, Object, Resource, ResourceParts, ResourceVersion,
        SELECTOR_TERMS_MAX, SelectorForm, Status, Values, WatchEvent, built_in, built_in_named, identities,
    };
    pub mod table {
        pub use crate::k8s::table::{PrinterColumn, Table, Timestamp};
    }
}
pub mod queue {
    pub use crate::queue::{Enqueue, EnqueueBy, LeaseToken, Spec, Watch};
}
pub mod reflect {
    pub use crate::reflect::{InitialList, MachineConfig, Reflector, ReflectorConfig};
}
pub mod serve {
    pub use crate::serve::{
        Ask, Config, Declared, DeclaredBy, Given, InProcess, QueueAccess, QueueConfig, QueueError, Queues,
        Workers,
    };
}
pub mod sim {
    pub use crate::sim::{
        ApiHandler, ApiServer, ApiServerConfig, Cluster, ClusterConfig, Counters, Cut, Failure, Fault,
        Faults, Gone, Requests, Scenario, Spread, StreamingLists, Verb, rfc3339,
    };
}
pub mod telemetry {
    pub use crate::telemetry::Metrics;
}
pub mod upstream {
    pub use crate::upstream::{Client, Config, Discovery, Selectors, Target, UpstreamSource};
}
