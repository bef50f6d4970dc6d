// Command external_host registers memory that is not the engine's: a mapping of the program's own.
//
// AdoptPointer takes an address as it is. The engine keeps the owner value alive, so that whoever ends
// the memory can hang on it; it neither pins, touches nor frees the memory itself.
package main
