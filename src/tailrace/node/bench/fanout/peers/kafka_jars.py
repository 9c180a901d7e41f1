"""What a Kafka broker is made of: kafka_2.13 and its runtime dependencies, each with the first half of its SHA-256.

To renew it: `mvn dependency:copy-dependencies -DincludeScope=runtime` for the new version, and sha256sum of the jars.
"""

VERSION = "4.3.1"
_JARS = {
    "at.yawk.lz4:lz4-java:1.10.2": "252dabd586d22149a31661a8afc1a507",
    "com.dynatrace.hash4j:hash4j:0.22.0": "23028a3fd006e530bf495f5510832081",
    "com.fasterxml.jackson.core:jackson-annotations:2.21": "53ca085f4a150f703f49e1aabd935bd0",
    "com.fasterxml.jackson.core:jackson-core:2.21.2": "12e8655b100267b44d0f14d01b1f5082",
    "com.fasterxml.jackson.core:jackson-databind:2.21.2": "8c982f01f148d805f0aaac2339011244",
    "com.fasterxml.jackson.dataformat:jackson-dataformat-csv:2.21.2": "682f8c7977e02a42748426bf54946e32",
    "com.fasterxml.jackson.dataformat:jackson-dataformat-yaml:2.21.2": "d25551812fa0c14f37cabaa9401e63ea",
    "com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.21.2": "e581bbf3fc5622d16b57366dd41e10fc",
    "com.github.ben-manes.caffeine:caffeine:3.2.0": "ec411dfdf0c03f25218648ce89861630",
    "com.github.luben:zstd-jni:1.5.6-10": "b6c3237e24b8252a5a9c3a0e1ae30ef8",
    "com.google.re2j:re2j:1.8": "7b52c72156dd7f98b3237a5b35c1d34f",
    "com.typesafe.scala-logging:scala-logging_2.13:3.9.6": "0ad0c3f4d89d538b3b6c300158555e26",
    "com.yammer.metrics:metrics-core:2.2.0": "6b7a14a6f34c10f8683f7b5e2f39df0f",
    "commons-beanutils:commons-beanutils:1.11.0": "9e44ba68ec9a3f21286fa2a8bbb003b7",
    "commons-collections:commons-collections:3.2.2": "eeeae917917144a68a741d4c0dff66aa",
    "commons-digester:commons-digester:2.1": "e0b2b980a84fc6533c5ce291f1917b32",
    "commons-logging:commons-logging:1.3.5": "6d7a744e4027649fbb50895df9497d10",
    "commons-validator:commons-validator:1.10.1": "ed74711a78d793ca37f6075e4a1e93d1",
    "net.sf.jopt-simple:jopt-simple:5.0.4": "df26cc58f235f477db07f753ba5a3ab2",
    "net.sourceforge.argparse4j:argparse4j:0.7.0": "65ceb669d88f63306c680f8088bbf765",
    "org.apache.kafka:kafka-clients:4.3.1": "52501b7b47510c66f898871adaf6d296",
    "org.apache.kafka:kafka-coordinator-common:4.3.1": "66a86b8c89718216ffa72fe4e44b9d1b",
    "org.apache.kafka:kafka-group-coordinator-api:4.3.1": "d81bc1a3739ff6c9b21815baae000223",
    "org.apache.kafka:kafka-group-coordinator:4.3.1": "4ab56d002e1624185c874199e9e0ffb2",
    "org.apache.kafka:kafka-metadata:4.3.1": "4d73a96c6474a4ebdd67a1cee14da1a9",
    "org.apache.kafka:kafka-raft:4.3.1": "46abbf89806dd22d848e997cdfb14315",
    "org.apache.kafka:kafka-server-common:4.3.1": "d7c719f749579a399011f0df7414de8a",
    "org.apache.kafka:kafka-server:4.3.1": "01d736599ec3b0cdbb0480c15219170b",
    "org.apache.kafka:kafka-share-coordinator:4.3.1": "8ceeed7346127e652ea5c650b217890a",
    "org.apache.kafka:kafka-storage-api:4.3.1": "bc2b22639fa554494461d101d599e01b",
    "org.apache.kafka:kafka-storage:4.3.1": "97e3facddd2914a58f28ec91ef35f8da",
    "org.apache.kafka:kafka-tools-api:4.3.1": "dcf6785742e0c8ab11a0fc09c62f1192",
    "org.apache.kafka:kafka-transaction-coordinator:4.3.1": "c64aaa2a88d8fd382c48002048729176",
    "org.apache.kafka:kafka_2.13:4.3.1": "b098abef5ff878e76f60cd6c559b9baa",
    "org.apache.logging.log4j:log4j-api:2.25.4": "c4b642a7f047275215de117e0e3847eb",
    "org.apache.logging.log4j:log4j-core:2.25.4": "10fee2c0485d54fa44ee75d314f62955",
    "org.bitbucket.b_c:jose4j:0.9.6": "7314af50cde9c99e8eaf43eee617a23e",
    "org.hdrhistogram:HdrHistogram:2.2.2": "22d1d4316c4ec13a68b559e98c8256d6",
    "org.jspecify:jspecify:1.0.0": "1fad6e6be7557781e4d33729d49ae1cd",
    "org.pcollections:pcollections:4.0.2": "2bbeef5797a241300c4f7513cd546239",
    "org.scala-lang:scala-library:2.13.18": "4e85d96ff7bc7dc627985523c3541b99",
    "org.scala-lang:scala-reflect:2.13.18": "6935ff1982b2ac93d695f15aa66921be",
    "org.slf4j:slf4j-api:1.7.36": "d3ef575e3e4979678dc01bf1dcce5102",
    "org.xerial.snappy:snappy-java:1.1.10.7": "4c766cb3f855415ee734b2392949a0b6",
    "org.yaml:snakeyaml:2.5": "e6682acf1ace77508ef13649cbf4f8d0",
}


def jars() -> dict[str, str]:
    """{path in a Maven repository: how its SHA-256 begins}."""
    found = {}
    for name, checksum in _JARS.items():
        group, artifact, version = name.split(":")
        found[f"{group.replace('.', '/')}/{artifact}/{version}/{artifact}-{version}.jar"] = checksum
    return found
